"""Publishing an experiment's results, and what is refused."""

import itertools
import json
import shutil

import pytest
import yaml

from reread.commands.publish import summary
from reread.planning.experiment import load_experiment
from reread.planning.resolve import make_plan
from reread.storage.digests import DIGESTS
from reread.storage.files import read_json, sha256_file, write_json
from reread.storage.run_folder import write_result
from reread.storage.source import ROOT
from tests.damage import damages
from tests.digests import write_digests
from tests.reread.commands.conftest import make_folder


@pytest.fixture
def published(reread, tmp_path, monkeypatch):
    """A project with a report of the tiny experiment, and with the runs that the report names."""
    monkeypatch.chdir(make_folder(tmp_path))
    plan = make_plan("tiny")
    variants: dict = {}
    for name in plan.variants:
        for seed in plan.seeds:
            key = f"{name}-{seed}"
            directory = tmp_path / "runs" / key
            directory.mkdir(parents=True)
            (directory / "best.safetensors").write_text(key)
            digest = sha256_file(directory / "best.safetensors")
            result = {"run_key": key, "variant": name, "seed": seed, "weights_sha256": digest}
            (directory / "history.csv").write_text("epoch\n1\n")
            write_result(directory, result)
            write_json(directory / "job.json", {"run_key": key, "data": plan.variants[name].data})
            write_json(
                directory / "environment.json",
                {"host": "here", "torch": "2.13.0", "cpu_capability": "AVX2", "git_commit": "0" * 40},
            )
            about = {"data": plan.variants[name].data, "score": "accuracy", "test": {"accuracy": {"mean": 0.91234}}}
            variants.setdefault(name, {**about, "seeds": {}})["seeds"][str(seed)] = {"run_key": key}
    report = tmp_path / "reports" / "tiny"
    write_json(report / "metrics.json", {"evaluated_on": "test", "variants": variants})
    write_json(report / "verdicts.json", {"verdicts": [{"name": "swish", "verdict": "inconclusive"}]})
    write_json(report / "plan.json", plan.record())
    (report / "curves.csv").write_text("epoch\n1\n")
    (report / "report.html").write_text("<html>")
    write_digests(report)
    return tmp_path


@pytest.mark.parametrize("file", ["metrics.json", "verdicts.json", "plan.json", "curves.csv", "digests.json"])
def test_no_damaged_report_is_published(reread, published, file):
    path = published / "reports/tiny" / file
    # All 55 ways are tried in tests/reread/storage/test_digests.py.
    for damage in itertools.islice(damages(path), 0, None, 11):
        assert "damaged" in reread("publish", "tiny", code=2), damage
        assert not (published / "results").exists(), damage
    path.unlink()
    assert "reports/tiny/" in reread("publish", "tiny", code=2)


def test_one_command_writes_all_that_is_committed(reread, published):
    assert "results/tiny: 8 runs" in reread("publish", "tiny")
    folder = published / "results" / "tiny"
    names = {path.name for path in folder.iterdir()}
    assert names == {"metrics.json", "verdicts.json", "plan.json", "curves.csv", "runs.json", "summary.json"}
    assert read_json(folder / "summary.json") == {
        "docstrings": {"han": 0.9123, "gru-flat": 0.9123},
        "digits": {"densenet-relu": 0.9123, "densenet-swish": 0.9123},
        "verdict": {"swish": "inconclusive"},
        "machine": "AVX2, torch 2.13.0",
    }
    runs = {run["run_key"]: run for run in read_json(folder / "runs.json")}
    run = runs["han-0"]
    assert run["weights_sha256"] == sha256_file(published / "runs/han-0/best.safetensors") and run["weights_verified"]
    assert (run["variant"], run["seed"], run["data"], run["commit"]) == ("han", 0, "docstrings", "0" * 40)
    assert run["environment"]["torch"] == "2.13.0" and "host" not in run["environment"]
    assert json.loads(reread("publish", "tiny", "--json"))["results"] == "results/tiny"
    # DVC has a stage of it from now on.
    listed = yaml.safe_load((published / "results/experiments.yaml").read_text())
    assert listed == {"experiments": {"tiny": {"of": "params"}}}


def test_the_summary_of_a_grid_has_the_best_trial_or_the_one_that_the_experiment_names():
    def about(mean):
        return {"data": "copying", "score": "accuracy", "test": {"accuracy": {"mean": mean}}}

    variants = {"gru/lag=1": about(1.0), "gru/lag=100": about(0.9)}
    metrics = {"evaluated_on": "test", "variants": variants, "tuned": {"gru": {"chosen": "gru/lag=1"}}}
    for trial, mean in ((None, 1.0), ("lag=100", 0.9)):
        assert summary(metrics, [], [], trial)["copying"] == {"gru": mean}
    assert load_experiment("copying", ROOT).summary == "lag=100"


def edit_json(path, **values):
    write_json(path, {**read_json(path), **values})
    if (path.parent / DIGESTS).is_file():
        write_digests(path.parent)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda root: (root / "runs/han-0/best.safetensors").write_text("x"), "runs/han-0/best.safetensors"),
        (lambda root: (root / "runs/han-0/best.safetensors").unlink(), "--without-weights"),
        (lambda root: (root / "runs/han-1/result.json").unlink(), "runs/han-1/result.json"),
        (lambda root: edit_json(root / "runs/han-1/result.json", run_key="han-0"), "'han-0'"),
        (lambda root: edit_json(root / "reports/tiny/plan.json", partial=True), "selection"),
        (lambda root: edit_json(root / "reports/tiny/plan.json", key="0"), "other settings"),
        (lambda root: edit_json(root / "reports/tiny/metrics.json", variants={}), "every variant and seed"),
        (lambda root: shutil.rmtree(root / "reports"), "reread run --experiment tiny"),
    ],
)
def test_what_does_not_verify_is_refused_and_nothing_is_written(reread, published, change, named):
    change(published)
    assert named in reread("publish", "tiny", code=2)
    assert not (published / "results").exists()


def test_runs_without_weights_are_published_where_that_is_asked_for(reread, published):
    (published / "runs/han-0/best.safetensors").unlink()
    reread("publish", "tiny", "--without-weights")
    runs = {run["run_key"]: run["weights_verified"] for run in read_json(published / "results/tiny/runs.json")}
    assert not runs.pop("han-0") and all(runs.values())
