"""The networks by name: found by their file, told by typed settings, built, exported, loaded."""

import dataclasses
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import models
from reread.batches import collation, inference
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.files import sha256_file, write_json
from reread.storage.source import ROOT


@pytest.fixture
def prepared(model, request):
    """Small data that ``model`` reads."""
    names = dict.fromkeys(("capsnet", "capsnet_baseline", "densenet_imagenet", "fastnet"), "photographs")
    names["symbol_recall"] = "symbols"
    of_kind = "images" if models.kind(model) == "image" else "text"
    return request.getfixturevalue(names.get(model, of_kind))


def test_the_networks_are_found_by_their_files():
    assert {"densenet", "gru_flat", "han", "word_average"} <= set(models.available())
    assert not {"feeding", "checked", "layers"} & set(models.available())


def test_a_new_file_is_a_new_network(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "models/han.py", tmp_path / "models/han_of_mine.py")
    (tmp_path / "models/notes.py").write_text("Settings = DEBUG = 1\n")
    monkeypatch.setattr("reread.storage.registry.ROOT", tmp_path)
    assert models.available() == ["han_of_mine"]


def test_the_names_are_known_without_torch():
    code = "import sys, models; models.available(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "settings", "place"),
    [
        ("han", {"hiden": 3}, "'hiden' in network"),
        ("han", {"hidden_size": 0}, "network.hidden_size is 0"),
        ("han", {"dropout": "1e-1"}, "network.dropout is '1e-1'"),
        ("gru_flat", {"pooling": "lst"}, "'last'"),
        ("han", {"pooling": "maximum"}, "'max'"),
        ("han", {"cell": "lstm"}, "network.cell is 'lstm'"),
        ("han", {"word_vectors": "glove"}, "random, word2vec"),
        ("word_average", {"word_dropout": 1.0}, "network.word_dropout is 1.0"),
        ("densenet", {"activation": {"name": "swish_betta"}}, "network.activation"),
    ],
)
def test_bad_names_and_values_are_refused_by_their_place(model, settings, place):
    with pytest.raises(InputError) as error:
        read(models.settings_class(model), settings, "network")
    assert place in str(error.value)


@pytest.mark.parametrize(("model", "right"), [("hann", "'han'"), ("resnext18", "resnet18")])
def test_an_unknown_model_is_refused_with_the_nearest_one(model, right):
    with pytest.raises(InputError, match=f"'{model}'.*{right}"):
        models.settings_class(model)


def test_settings_of_a_job_are_read_without_a_validation_library():
    assert models.settings("han", {"dropout": 0.25}).dropout == 0.25
    with pytest.raises(InputError, match="'hiden'"):
        models.settings("han", {"hiden": 3})


def test_a_network_refuses_data_of_the_other_kind(text, images):
    with pytest.raises(InputError, match="han reads text, and small is image data"):
        models.build("han", {}, images.description)
    with pytest.raises(InputError, match="densenet reads image, and small is text data"):
        models.build("densenet", {}, text.description)


@pytest.mark.parametrize("model", models.available())
def test_the_debug_size_trains_a_step(model, prepared):
    torch.manual_seed(0)
    network = models.build(model, dataclasses.asdict(models.debug(model)), prepared.description)
    rows = prepared.rows("train")
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)

    def loss():
        return functional.cross_entropy(network(*collation.inputs(prepared, rows)), collation.labels(prepared, rows))

    network.eval()
    before = loss()
    before.backward()
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)
    optimiser.step()
    assert loss() < before


EXPORTED = [
    *((model, {}) for model in models.available()),
    ("densenet", {"activation": {"name": "swish_beta"}}),
    ("densenet_imagenet", {"activation": {"name": "swish_beta"}}),
    ("han", {"pooling": "mean", "cell": "rnn", "word_dropout": 0.1}),
    ("han", {"pooling": "max", "cell": "minimal"}),
    ("gru_flat", {"pooling": "attention"}),
]


@pytest.mark.filterwarnings("ignore:.*_flat_weights.* assigned during export:UserWarning")
@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
@pytest.mark.parametrize(("model", "settings"), EXPORTED)
def test_an_exported_network_gives_the_same_for_any_batch_size(model, settings, prepared):
    network = models.build(model, dataclasses.asdict(models.debug(model)) | settings, prepared.description).eval()
    arguments = collation.inputs(prepared, prepared.rows("train"))
    batch = torch.export.Dim("batch", min=1, max=1024)
    exported = torch.export.export(network, arguments, dynamic_shapes=[{0: batch}] * len(arguments)).module()
    with torch.no_grad():
        for some in (arguments, tuple(argument[:5] for argument in arguments)):
            torch.testing.assert_close(exported(*some), network(*some), rtol=0, atol=1e-6)


def test_a_run_s_network_is_loaded_with_its_best_weights(tmp_path, text):
    settings = dataclasses.asdict(models.debug("han"))
    network = models.build("han", settings, text.description).eval()
    weights = tmp_path / "best.safetensors"
    write_json(tmp_path / "job.json", {"model": "han", "network": settings})
    with pytest.raises(InputError, match="best.safetensors is missing"):
        models.load(tmp_path, text.description)
    save_file(network.state_dict(), weights)
    with pytest.raises(InputError, match="has no result.json"):
        models.load(tmp_path, text.description)
    write_json(tmp_path / "result.json", {"epochs": 3, "weights_sha256": sha256_file(weights)})
    with pytest.raises(InputError, match="network_source"):
        models.load(tmp_path, text.description)
    record = {"weights_sha256": sha256_file(weights), "network_source": models.network_source("han", settings)}
    write_json(tmp_path / "result.json", record)
    with pytest.raises(InputError, match="best.safetensors does not fit han on .*embedding.*"):
        models.load(tmp_path, text.description | {"vocabulary_size": text.description["vocabulary_size"] + 1})
    loaded = models.load(tmp_path, text.description)
    rows = text.rows("train")
    assert not loaded.training
    assert (inference.predict(loaded, text, rows) == inference.predict(network, text, rows)).all()

    # One bit of one weight, which safetensors itself does not notice.
    whole = weights.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:100]):
        weights.write_bytes(damaged)
        with pytest.raises(InputError, match="best.safetensors has changed since training: .*weights_sha256"):
            models.load(tmp_path, text.description)
    weights.write_bytes(whole)
    write_json(tmp_path / "result.json", record | {"network_source": "0" * 64})
    write_json(tmp_path / "environment.json", {"git_commit": "0123456789abcdef"})
    with pytest.raises(models.SourceChanged, match="models/han.py .* commit 0123456789ab:"):
        models.load(tmp_path, text.description)
