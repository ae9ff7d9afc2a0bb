"""A tokenizer of its own and a pretrained encoder: tokens in place of words, through all commands.

The library ``tokenizers`` is in no lock file: where it is not installed, the tests of its use are skipped.
"""

import csv
import json
import re
import sys

import pytest
import torch
import yaml
from safetensors.torch import save_file

import models
from reread.kinds.text import token_ids
from reread.planning.validation import read
from reread.preprocessing import tokenizer
from reread.storage.errors import InputError
from reread.storage.files import read_json, sha256_file
from reread.storage.prepared import open_prepared

WORDS = {"good": ["fine", "lovely", "bright", "warm", "kind"], "bad": ["poor", "awful", "dull", "cold", "cruel"]}
SMALL = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "positions": 12}


def tokenizer_file(path, extra=()):
    """Write a WordPiece tokenizer as BERT's, whose padding is not its first token; return its sha256."""
    library = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "the", "film", "is", "##s", *WORDS["good"], *WORDS["bad"], *extra]
    numbers = {word: number for number, word in enumerate(words)}
    made = library.Tokenizer(library.models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])]
    made.post_processor = library.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    made.save(str(path))
    return sha256_file(path)


def weights_file(path, size=18, seed=0, **changes):
    """Write a random encoder with BERT's names and what BERT has beside it; return its sha256."""
    torch.manual_seed(seed)
    network = models.build("encoder", SMALL, {"kind": "text", "name": "x", "classes": ["a"], "vocabulary_size": size})
    state = {f"bert.{name}": value for name, value in network.state_dict().items() if "classifier" not in name}
    state |= {"bert.pooler.dense.weight": torch.zeros(16, 16), "cls.predictions.bias": torch.zeros(size)}
    state |= changes
    save_file({name: value.contiguous() for name, value in state.items() if value is not None}, path)
    return sha256_file(path)


def test_numbers_begin_with_padding_and_unknown():
    assert token_ids({"size": 5, "padding": 3, "unknown": 1}) == [3, 1, 0, 2, 4]
    assert token_ids({"size": 3, "padding": None, "unknown": None}) == [0, 0, 0, 1, 2]


@pytest.mark.unlocked
def test_tokens_are_the_tokenizers_by_numbers_of_ours(tmp_path):
    tokenizer_file(tmp_path / "tokenizer.json")
    opened = tokenizer.Tokenizer(tmp_path / "tokenizer.json")
    assert opened.about == {"size": 18, "padding": 1, "unknown": 0}
    (numbers,) = opened.encode(["The films is xyzzy"])
    assert [opened.vocabulary[number] for number in numbers] == ["[CLS]", "the", "film", "##s", "is", "[UNK]", "[SEP]"]
    assert numbers[5] == 1 and opened.vocabulary[0] == "[PAD]"
    ids = token_ids(opened.about)
    assert [ids[number] for number in numbers] == opened.encoder.encode("The films is xyzzy").ids


@pytest.mark.unlocked
def test_without_the_library_and_for_another_file_there_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(InputError, match="needs the package 'tokenizers'"):
            tokenizer.Tokenizer(path)
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"no file of 'tokenizers'"):
        tokenizer.Tokenizer(path)


DESCRIPTION = {
    "kind": "text",
    "name": "films",
    "classes": ["a", "b"],
    "vocabulary_size": 18,
    "tokenizer": {"size": 18, "padding": 1, "unknown": 0},
}


def encoder(path, digest, **settings):
    weights = {"path": str(path), "sha256": digest}
    return models.build("encoder", {**SMALL, **settings, "initial_weights": weights}, DESCRIPTION).eval()


def test_a_pretrained_file_is_read_by_bert_names(tmp_path):
    path = tmp_path / "model.safetensors"
    network = encoder(path, weights_file(path))
    same = encoder(path, weights_file(path, size=24))  # more rows than the tokenizer has tokens
    assert same.embeddings["word_embeddings"].weight.shape == (18, 16)
    tokens, counts = torch.tensor([[[2, 3, 4]]]), torch.tensor([[3]])
    torch.manual_seed(0)
    direct = models.build("encoder", SMALL, {**DESCRIPTION, "tokenizer": None}).eval()
    direct.load_state_dict(network.state_dict(), strict=False)
    ids = torch.tensor([token_ids(DESCRIPTION["tokenizer"])])[0]
    assert torch.equal(network(tokens, counts, torch.ones(1)), direct(ids[tokens], counts, torch.ones(1)))


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"bert.encoder.layer.0.output.dense.weight": None}, r"output\.dense\.weight .* no such weight"),
        (
            {"bert.embeddings.LayerNorm.weight": torch.zeros(3)},
            r"LayerNorm\.weight is \[16\], and .*\[3\]",
        ),
        ({"bert.encoder.layer.1.output.dense.bias": torch.zeros(16)}, r"no encoder\.layer\.1\.output"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_weight(tmp_path, changes, answer):
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=answer):
        encoder(path, weights_file(path, **changes))


def test_weights_need_their_file_and_their_tokenizer(tmp_path):
    path = tmp_path / "model.safetensors"
    digest = weights_file(path)
    with pytest.raises(InputError, match="another sha256"):
        encoder(path, "0" * 64)
    with pytest.raises(InputError, match="is missing"):
        encoder(tmp_path / "absent.safetensors", digest)
    words = {name: value for name, value in DESCRIPTION.items() if name != "tokenizer"}
    with pytest.raises(InputError, match=r"preprocessing\.films\.tokenizer"):
        models.build("encoder", {**SMALL, "initial_weights": {"path": str(path), "sha256": digest}}, words)
    with pytest.raises(InputError, match="multiple of heads"):
        read(models.settings_class("encoder"), {"width": 10, "heads": 3}, "network")


@pytest.mark.unlocked
def test_a_pretrained_encoder_is_fine_tuned_by_its_own_tokenizer(project):
    """Through real commands: data, dry run, training, evaluation, prediction; other files are other runs."""
    folder = project.directory

    def reread(*words, **keywords):
        return project.run("python", "-m", "reread", *words, **keywords)

    with open(folder / "films.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(240):
            label = ("good", "bad")[number % 2]
            words = WORDS[label]
            first, second = words[number // 2 % 5], words[number // 10 % 5]
            writer.writerow([f"The film {number} is {first} {second}", label])
    reread("data", "add", "films.csv")

    def write(**changes):
        given = {
            "tokenizer": {"path": "tokenizer.json", "sha256": tokenizer_file(folder / "tokenizer.json")},
            "weights": {"path": "model.safetensors", "sha256": weights_file(folder / "model.safetensors")},
            **changes,
        }
        network = {**SMALL, "initial_weights": given["weights"]}
        training = {"max_epochs": 2, "batch_size": 8, "learning_rate": 0.01}
        about = {
            "title": "A pretrained encoder",
            "variants": {
                "encoder": {
                    "model": "encoder",
                    "data": "films",
                    "network": network,
                    "preprocessing": {"tokenizer": given["tokenizer"]},
                    "training": training,
                },
                "words": {"model": "word_average", "data": "films", "training": training},
            },
            "seeds": [0],
            "evaluate_on": "test",
        }
        (folder / "experiments/pretrained.yaml").write_text(yaml.safe_dump(about))

    def keys():
        printed = reread("run", "--experiment", "pretrained", "--dry-run").stdout
        return set(re.findall(r"│ encoder +│ +0 │ ([\w: ]+?) +│ (\w+)", printed))

    write()
    reread("run", "--experiment", "pretrained")
    ((usual, state),) = keys()
    result = read_json(folder / "runs" / usual / "result.json")
    assert state == "cached" and result["validation"]["score"] > 0.9
    job = json.loads((folder / "runs" / usual / "job.json").read_text())
    prepared = open_prepared(folder / job["prepared"])
    assert prepared.description["tokenizer"]["size"] == 18 and prepared.arrays["word_counts"].shape[1] == 1
    assert "path" not in job["key_parts"]["network"]["initial_weights"]
    ask = ("predict", "--data", "films", "--variant", "encoder")
    assert "good" in reread(*ask, "A lovely, warm film").stdout and "bad" in reread(*ask, "Dull, awful").stdout

    # The place of a file is in no key; another file of weights is, and so is another tokenizer.
    (folder / "moved.json").write_bytes((folder / "tokenizer.json").read_bytes())
    write(tokenizer={"path": "moved.json", "sha256": sha256_file(folder / "moved.json")})
    assert keys() == {(usual, "cached")}
    write(weights={"path": "other.safetensors", "sha256": weights_file(folder / "other.safetensors", seed=1)})
    ((other, state),) = keys()
    assert other != usual and state == "train"
    write(tokenizer={"path": "other.json", "sha256": tokenizer_file(folder / "other.json", ["movie"])})
    assert keys() == {("not known: no arrays yet", "train")}
    write(tokenizer={"path": "tokenizer.json", "sha256": "0" * 64})
    refused = reread("jobs", "--experiment", "pretrained", code=2).stderr
    assert "has another sha256" in refused.splitlines()[-1]
