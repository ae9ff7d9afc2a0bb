"""The cost of padding: how much of what each way reads is padding, and which steps are timed."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from benchmarks.padding import WAYS, Timer, main, padded_to
from reread.batches import collation
from reread.preprocessing.prepare import prepare
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.source import ROOT
from reread.training.settings import Settings

CPU = torch.device("cpu")
NETWORK = {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.5}
TRAINING = Settings(batch_size=8, schedule={"name": "cosine", "warmup_epochs": 0})
pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a small experiment of one quantile, prepared."""
    root = tmp_path_factory.mktemp("project")
    (root / "data").symlink_to((ROOT / "data").resolve())
    for name in ("data.manifest.json", "params.yaml"):
        shutil.copy(ROOT / name, root / name)
    variant = {"model": "han", "data": "docstrings", "preprocessing": {"rows_per_class": 6}, "network": NETWORK}
    experiment = {
        "title": "t",
        "variants": {"han": variant},
        "seeds": [0],
        "parameters": {"training": {"batch_size": 8}},
    }
    (root / "experiments").mkdir()
    (root / "experiments/trial.yaml").write_text(yaml.safe_dump(experiment))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        settings = {
            **yaml.safe_load((root / "params.yaml").read_text())["preprocessing"]["docstrings"],
            "rows_per_class": 6,
        }
        prepare("docstrings", settings)
    return root


@pytest.fixture
def prepared(project) -> Prepared:
    (folder,) = (path.parent for path in project.glob("prepared/*/prepared.json"))
    return open_prepared(folder)


def test_what_padding_is_read_in_each_way(prepared):
    lengths = prepared.description["lengths"]
    kept = (lengths["sentences"]["kept"], lengths["words"]["kept"])
    ways = {steps.way: steps for steps in Timer(prepared, kept, NETWORK, TRAINING, CPU, count=100).all_ways()}
    assert tuple(ways) == WAYS
    rows = prepared.rows("train")
    words = collation.sizes(prepared, rows).sum()
    assert ways["cut length"].padding == pytest.approx(1 - words / (len(rows) * kept[0] * kept[1]))
    # Batches of similar length have less than random ones, and these less than the most that there can be.
    like, chance, most = (ways[name].padding for name in ("longest, like length", "longest, any length", "cut length"))
    assert like < chance < most
    assert {len(steps.seconds) for steps in ways.values()} == {-(-len(rows) // 8)}
    assert ways["project"].documents == len(rows)
    # What is too large for a CPU is not timed, and has no time.
    row = Timer(prepared, (500, 800), NETWORK, TRAINING, CPU, count=2).way("cut length", "off").as_row()
    assert row["n"] == 0 and row["median_ms"] is None and row["padding"] > 0.99


def test_padding_up_to_the_truncated_lengths_adds_padding_alone(prepared):
    given = collation.inputs(prepared, np.array([4, 7]))
    sentences, words = given[0].shape[1] + 1, given[0].shape[2] + 2
    tokens, word_counts, sentence_counts = padded_to(given, sentences, words)
    assert tokens.shape == (2, sentences, words) and word_counts.shape == (2, sentences)
    assert tokens.sum() == given[0].sum() and word_counts.sum() == given[1].sum()
    assert torch.equal(tokens[:, :-1, :-2], given[0]) and torch.equal(sentence_counts, given[2])


def test_it_runs_as_a_command(project, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(project)
    options = ["--experiment", "trial", "--batches", "1", "--json", str(tmp_path / "padding.json")]
    monkeypatch.setattr("sys.argv", ["benchmarks.padding", *options])
    with pytest.raises(SystemExit, match="0"):
        main()
    written = json.loads((tmp_path / "padding.json").read_text())
    assert [row["way"] for row in written["results"]] == list(WAYS)
    assert "| docstrings | han | project |" in capsys.readouterr().out
