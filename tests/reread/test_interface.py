"""The Python interface, on runs as they are on disk after training and on published results."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reread.evaluation import run as evaluation
from reread.goals.multi_label import MICRO_F1
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.preprocessing.prepare import prepare
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.ledger import open_run_test_split, read_ledger
from reread.storage.run_folder import RunFolder
from reread.storage.source import ROOT
from tests.reread.tracking.examples import evaluate_run, finish_run, make_job, prepared_text

# A fixture of tests/reread/commands has the package's name.
reread = importlib.import_module("reread")


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Two runs of HAN, evaluated, and one of a flat GRU that is not finished."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REREAD_RUNS", raising=False)
    prepared = prepared_text(tmp_path)
    made = [make_job(tmp_path, prepared, "han", seed, learning_rate=0.01 * (seed + 1)) for seed in (0, 1)]
    for job, score in zip(made, (0.8, 0.9), strict=True):
        evaluate_run(Path(finish_run(job, score)), score)
    flat = make_job(tmp_path, prepared, "gru_flat")
    flat.run_directory.mkdir(parents=True)
    return [*made, flat]


def test_runs_have_names_metrics_and_settings(jobs):
    table = reread.runs()
    assert set(table.index) == {job.run_key for job in jobs[:2]}
    run = table.loc[jobs[1].run_key]
    assert (run["experiment"], run["variant"], run["data"], run["seed"]) == ("trial", "han", "snippets", 1)
    assert run["finished"] and run["test.accuracy"] == pytest.approx(0.9)
    assert run["training.learning_rate"] == 0.02 and run["network.hidden_size"] == jobs[1].network["hidden_size"]


def test_no_run_is_an_empty_table_in_a_project_and_refused_outside_of_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for asked in ((), ("tiny",)):
        with pytest.raises(InputError, match="/ is missing: run this from the project's folder"):
            reread.runs(*asked)
    (tmp_path / "params.yaml").touch()
    assert reread.runs().empty
    (tmp_path / "experiments").mkdir()
    with pytest.raises(InputError, match="nonesuch"):
        reread.runs("nonesuch")


def test_curves_of_a_table_of_a_key_and_of_its_beginning(jobs):
    runs = reread.runs()
    both = reread.curves(runs)
    assert list(both.columns[:4]) == ["run_key", "variant", "seed", "epoch"]
    assert set(both["seed"]) == {0, 1} and both.groupby("run_key")["epoch"].is_monotonic_increasing.all()
    key = runs.index[0]
    expected = both[both["run_key"] == key].reset_index(drop=True)
    for given in (key, key[:6], [key]):
        pd.testing.assert_frame_equal(reread.curves(given), expected)
    with pytest.raises(InputError, match="no run is given"):
        reread.curves([])


def test_compare_has_the_differences_alone_or_everything(jobs):
    keys = [job.run_key for job in jobs[:2]]
    differences = reread.compare(*keys)
    row = differences.loc[("parameters", "training.learning_rate")]
    assert (row["a"], row["b"], row["difference"]) == (0.01, 0.02, pytest.approx(0.01))
    assert ("parameters", "variant") not in differences.index
    assert ("parameters", "variant") in reread.compare(*keys, everything=True).index


def test_scores_and_verdicts_are_those_of_the_report(monkeypatch):
    """Of the default experiment: its own report where there is one, else the published results."""
    monkeypatch.chdir(ROOT)
    scores = reread.scores("default")
    han = scores.loc[("docstrings", "han", "test", "accuracy")]
    assert han["low"] < han["mean"] < han["high"] and han["seeds"] == 6
    baseline = scores.loc[("docstrings", "nb-svm", "test", "accuracy")]
    assert baseline["seeds"] == 0 and pd.isna(baseline["low"]) and 0.5 < baseline["mean"] < 1
    verdicts = reread.comparisons("default")
    assert list(verdicts.index) == ["averages", "hierarchy", "swish-beta"]
    assert verdicts.loc["hierarchy", "treatment"] == "han" and verdicts.loc["hierarchy", "seeds"] == 6
    with pytest.raises(InputError, match="has no report"):
        reread.scores("search")


def add_tickets(rows: int) -> None:
    """Each row has one label or two of three, and a few words."""
    words = ["invoice", "password", "parcel"]
    lines = [
        {
            "id": f"t{row}",
            "text": f"The {words[row % 3]} of day {row}.",
            "tags": sorted({words[row % 3], words[row % 2]}),
        }
        for row in range(rows)
    ]
    Path("tickets.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reread.data.add("tickets.jsonl", text="text", label="tags", id="id", say=lambda line: None)


def test_predictions_are_those_of_the_tuned_threshold_and_of_the_data_set_that_was_prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REREAD_RUNS", raising=False)
    add_tickets(90)
    prepared = prepare("tickets", {"min_count": 1})
    description = read_json(prepared / "prepared.json")
    job = replace(make_job(tmp_path, prepared, "han"), data="tickets")
    run = RunFolder(finish_run(job, description=description))
    with open_run_test_split(run, description):
        metrics = read_json(evaluation.evaluate_run(run.directory, prepared) / "metrics.json")

    table = reread.predictions(job.run_key)
    tags = {line["id"]: line["tags"] for line in map(json.loads, Path("tickets.jsonl").read_text().splitlines())}
    assert table["label"].to_dict() == {name: tags[name] for name in table.index}
    predicted, truth = (
        np.array([[name in row for name in description["classes"]] for row in table[column]], np.float32)
        for column in ("prediction", "label")
    )
    tuned = metrics["test"]["tuned_micro_f1"]
    assert tuned != metrics["test"]["micro_f1"] and MICRO_F1.value(predicted, truth) == pytest.approx(tuned)

    add_tickets(110)
    reads = len(read_ledger())
    versions = f"{description['data_version'][:12]} .* {Manifest.load().entry('tickets').version[:12]}"
    for split in ("validation", "test"):
        with pytest.raises(InputError, match=versions):
            reread.predictions(job.run_key, split)
    assert len(read_ledger()) == reads


def test_predictions_name_the_files_of_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REREAD_RUNS", raising=False)
    drawn = np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)
    for number, pixels in enumerate(drawn):
        file = tmp_path / "shapes" / f"class {number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    reread.data.add("shapes", say=lambda line: None)
    prepared = prepare("shapes", {})
    description = read_json(prepared / "prepared.json")
    job = replace(make_job(tmp_path, prepared, "densenet"), data="shapes")
    run = RunFolder(finish_run(job, description=description))
    with open_run_test_split(run, description):
        evaluation.evaluate_run(run.directory, prepared)
    labels = reread.predictions(job.run_key)["label"]
    assert len(labels) and all(name.startswith(f"{label}/") for name, label in labels.items()), labels


def test_the_package_imports_nothing_of_the_project_before_it_is_used():
    code = """
import sys
before = set(sys.modules)
import reread
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names))
assert {"data", "try_"} <= set(dir(reread)) and reread.__version__[0].isdecimal() and "reread.data" not in sys.modules
assert callable(reread.data.add)
assert callable(reread.runs) and "runs" in dir(reread) and "reread.interface" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['reread']\n"
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        reread.nonesuch  # noqa: B018


def test_attention_has_a_row_per_word():
    attention = [
        [{"weight": 0.81, "words": ["a", "b"], "word_weights": [0.5, 0.5]}],
        [{"weight": 0.25, "words": ["c"], "word_weights": [1.0]}],
    ]
    table = reread.attention(pd.DataFrame({"attention": attention}))
    assert table["text"].tolist() == ["a", "b", "c"] and table["document"].tolist() == [0, 0, 1]
    assert table["shade"].tolist() == pytest.approx([0.45, 0.45, 0.5])
    with pytest.raises(InputError, match="no attention"):
        reread.attention(pd.DataFrame({"label": ["a"]}))


def test_data_are_added_previewed_and_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"Title {number};Text number {number};{'ab'[number % 2]}" for number in range(60)]
    Path("mine.csv").write_text("title;body;kind\n" + "\n".join(rows))
    options = {"text": ["title", "body"], "label": "kind", "delimiter": ";"}
    lines = []
    seen = reread.data.add("mine.csv", **options, dry_run=True, say=lines.append)
    assert not Path("data").exists() and "label  kind" in lines
    entry = reread.data.add("mine.csv", **options, say=lines.append)
    assert (entry.splits, entry.classes) == (seen.splits, ("a", "b"))
    assert next(open_data_set("mine").documents()).text.startswith("Title") and Path("data/mine/card.md").is_file()
    wrong = [
        ("label", "kinds", "'kinds'"),
        ("colours", "blue", "'blue'"),
        ("size", 1, "size is 1"),
        ("size", 32, "--size"),
    ]
    for option, value, match in [*wrong, ("task", "both", "'both'"), ("quote", "||", "--quote")]:
        with pytest.raises(InputError, match=match):
            reread.data.add("mine.csv", **{**options, option: value}, say=lines.append)
    (listed,) = reread.data.list()
    assert (listed["name"], listed["kind"], listed["files"]) == ("mine", "text", "present")
    reread.data.remove("mine")
    assert reread.data.list() == []
    assert not Path("data/mine").exists() and not Manifest.load().datasets
    for name in ("mine", "digits"):
        with pytest.raises(InputError, match=f"'{name}'"):
            reread.data.remove(name)


def test_a_try_of_unknown_data_and_of_no_seeds_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").touch()
    with pytest.raises(InputError, match="'mine'"):
        reread.try_("mine")
    for name, value in (("seeds", 0), ("epochs", 1), ("minutes", -1)):
        with pytest.raises(InputError, match=f"{name} is {value}"):
            reread.try_("mine", **{name: value})
