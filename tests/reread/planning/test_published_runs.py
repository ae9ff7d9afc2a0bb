"""An experiment that grows from its published results: no weights, nothing trained twice, the same bytes."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from reread.evaluation.items import open_items, recompute
from reread.storage.files import content_key
from reread.storage.run_folder import read_files, write_files
from reread.training.machine import machine as this_machine
from tests.conftest import Project, clean_environment

ELSEWHERE = {"REREAD_MACHINE": "machine.json"}


@pytest.fixture(scope="module")
def publisher(template, prefect_api, tmp_path_factory):
    """A project with the results of two networks that another machine has trained on two seeds, and nothing else."""
    root = tmp_path_factory.mktemp("publisher") / "project"
    shutil.copytree(template, root, symlinks=True)
    project = Project(root, clean_environment()).using(prefect_api)
    tiny = yaml.safe_load((root / "experiments/tiny.yaml").read_text())
    variants = {name: tiny["variants"][name] for name in ("han", "gru-flat")}
    comparisons = [{**tiny["comparisons"][0], "name": name, "control": name} for name in ("gru-flat", "nb-svm")]
    parameters = {**tiny["parameters"], "preprocessing": {"docstrings": {"rows_per_class": 20}}}
    parameters["training"]["max_epochs"] = 2
    grows = {**tiny, "variants": variants, "comparisons": comparisons, "seeds": [0, 1], "parameters": parameters}
    (root / "experiments/grows.yaml").write_text(yaml.safe_dump(grows))
    (root / "machine.json").write_text(json.dumps({**this_machine(), "torch": "2.11.0+elsewhere"}))
    reread(project, "jobs", **ELSEWHERE)
    jobs = sorted(str(path) for path in (root / "runs").glob("*/job.json"))
    assert len(jobs) == 4
    project.run("python", "-m", "reread.training", *jobs)
    reread(project, "evaluate", **ELSEWHERE)
    project.run("python", "-m", "reread", "publish", "grows", **ELSEWHERE)
    forget(root)
    return project


@pytest.fixture
def published(publisher, tmp_path):
    """A copy of ``publisher``."""
    shutil.copytree(publisher.directory, tmp_path / "project", symlinks=True)
    return replace(publisher, directory=tmp_path / "project")


def reread(project, command, *options, code=0, **environment):
    return project.run("python", "-m", "reread", command, "--experiment", "grows", *options, code=code, **environment)


def forget(root):
    for name in ("runs", "prepared", "reports"):
        shutil.rmtree(root / name, ignore_errors=True)


def age(results):
    """Give published runs the keys that other code gave them."""
    runs, today = json.loads((results / "runs.json").read_text()), {}
    for run in runs:
        run["key_parts"]["source"] = "0" * 16
        today[run["run_key"]] = content_key(run["key_parts"])
        run["run_key"] = today[run["run_key"]]
    (results / "runs.json").write_text(json.dumps(runs))
    files = {today[key]: value for key, value in read_files(results / "files.json.xz").items()}
    for key, value in files.items():
        value["result"]["run_key"] = key
    write_files(results / "files.json.xz", files)
    arrays = dict(np.load(results / "items.npz"))
    renamed = {"/".join(today.get(part, part) for part in name.split("/")): array for name, array in arrays.items()}
    np.savez_compressed(results / "items.npz", allow_pickle=False, **renamed)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_clone_reports_published_runs_and_adds_a_seed_to_them(published):
    root = published.directory
    results, before = root / "results/grows", files_of(root / "results/grows")
    assert "every run is finished" in reread(published, "jobs", **ELSEWHERE).stderr

    # A clone on this machine, which has neither runs nor arrays: the same report and the same results, byte for byte.
    forget(root)
    evaluated = reread(published, "evaluate")
    assert "4 of 4 runs are known from results/" in evaluated.stdout
    assert (
        not list((root / "runs").glob("*/best.safetensors")) and len(list((root / "runs").glob("*/result.json"))) == 4
    )
    published.run("python", "-m", "reread", "publish", "grows")
    assert files_of(results) == before
    planned = json.loads(reread(published, "run", "--dry-run", "--json").stdout)["runs"]
    assert [run["state"] for run in planned] == ["cached"] * 4
    # Who does not want them trains for this machine.
    own = json.loads(reread(published, "run", "--dry-run", "--json", REREAD_PUBLISHED="false").stdout)["runs"]
    assert [run["state"] for run in own] == ["train"] * 4

    # A third seed is missing, there and here; what there is can be published, and says so.
    published.edit("experiments/grows.yaml", "seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n")
    missing = reread(published, "jobs", **ELSEWHERE).stdout.split()
    assert {json.loads((root / job).read_text())["seed"] for job in missing} == {2} and len(missing) == 2
    assert "2 of 6 runs of 'grows' are not trained" in reread(published, "evaluate", code=2).stderr
    reread(published, "evaluate", "--so-far")
    refused = published.run("python", "-m", "reread", "publish", "grows", code=2).stderr
    assert "does not have every variant and seed" in refused and files_of(results) == before
    published.run("python", "-m", "reread", "publish", "grows", "--so-far")
    for name in ("metrics.json", "verdicts.json"):
        so_far = json.loads((results / name).read_text())["so_far"]
        assert so_far == {"han": "2 of 3 seeds", "gru-flat": "2 of 3 seeds"}
    assert "(so far: 2 of 3 seeds)" in (root / "reports/grows/report.html").read_text()

    # Only the third seed is trained, on this machine; the others stay as they were.
    reread(published, "run")
    assert {path.parent.name for path in (root / "runs").glob("*/best.safetensors")} == {
        run["run_key"]
        for run in json.loads(reread(published, "run", "--dry-run", "--json").stdout)["runs"]
        if run["seed"] == 2
    }
    published.run("python", "-m", "reread", "publish", "grows")
    old, new = json.loads(before["runs.json"]), json.loads((results / "runs.json").read_text())
    assert len(new) == 6 and [run for run in new if run["seed"] < 2] == old
    machines = {run["seed"]: run["key_parts"]["machine"]["torch"] for run in new}
    assert machines[0] == "2.11.0+elsewhere" and machines[2] == this_machine()["torch"]
    (root / "before").mkdir()
    for name, content in before.items():
        (root / "before" / name).write_bytes(content)
    then, now = open_items(root / "before"), open_items(results)
    assert set(then.arrays.files) < set(now.arrays.files)
    assert all(np.array_equal(then.arrays[name], now.arrays[name]) for name in then.arrays.files)
    files, all_files = read_files(root / "before/files.json.xz"), read_files(results / "files.json.xz")
    assert {key: all_files[key] for key in files} == files
    assert "so_far" not in json.loads((results / "metrics.json").read_text())

    # The results alone give the figures that the verdicts were made of.
    for verdict in json.loads((results / "verdicts.json").read_text())["verdicts"]:
        measured = recompute(results, verdict)
        for name, side in (("treatment", measured.treatment), ("control", measured.control)):
            assert list(side.seeds) == verdict["seeds"][name]
            assert list(side.scores) == pytest.approx(verdict["scores"][name], abs=1e-10)
        assert measured.items.deviation == pytest.approx(verdict["item_deviation"], abs=1e-10)
        assert (measured.items.count, measured.items.units) == (verdict["items"], verdict["item_units"])


def test_runs_of_older_code_are_named_and_taken_where_that_is_asked_for(published):
    root = published.directory
    expected = json.loads((root / "results/grows/verdicts.json").read_text())["verdicts"]
    age(root / "results/grows")
    line = "4 runs are published of older code, and not taken: REREAD_PUBLISHED=older takes what is published"
    assert line in reread(published, "evaluate", code=2).stderr
    assert line in reread(published, "run", "--dry-run").stdout
    assert not list((root / "runs").glob("*/result.json"))

    older = {"REREAD_PUBLISHED": "older"}
    taken = reread(published, "run", **older)
    assert "4 runs are published of older code, and taken as published" in taken.stdout + taken.stderr
    judged = json.loads((root / "reports/grows/verdicts.json").read_text())["verdicts"]
    assert [verdict["interval"] for verdict in judged] == [verdict["interval"] for verdict in expected]
    keys = {run["run_key"] for run in json.loads((root / "results/grows/runs.json").read_text())}
    assert {path.parent.name for path in (root / "runs").glob("*/result.json")} == keys
    assert not list((root / "runs").glob("*/best.safetensors"))
    published.run("python", "-m", "reread", "publish", "grows", **older)
    assert {run["run_key"] for run in json.loads((root / "results/grows/runs.json").read_text())} == keys


def test_a_wrong_value_of_the_variable_is_refused_by_name(published):
    refused = reread(published, "evaluate", code=2, REREAD_PUBLISHED="old").stderr
    assert "REREAD_PUBLISHED=old is wrong" in refused and "`older`" in refused


def test_results_without_what_restores_runs_train_as_before_and_damaged_ones_are_refused(published):
    root = published.directory
    results = root / "results/grows"
    content = (results / "files.json.xz").read_bytes()
    (results / "files.json.xz").unlink()
    reread(published, "jobs")
    assert len(list((root / "runs").glob("*/job.json"))) == 4 and not list((root / "runs").glob("*/result.json"))
    (results / "files.json.xz").write_bytes(content[:-9])
    assert "files.json.xz cannot be read" in reread(published, "evaluate", code=2).stderr
    assert not list((root / "runs").glob("*/result.json"))


def test_a_damaged_run_of_results_is_restored_from_them_again(published):
    root = published.directory
    published_verdicts = (root / "results/grows/verdicts.json").read_bytes()
    for name in ("items.npz", "files.json.xz", "runs.json"):
        forget(root)
        content = (root / "results/grows" / name).read_bytes()
        (root / "results/grows" / name).write_bytes(content[: len(content) // 2])
        said = reread(published, "evaluate", code=2).stderr
        assert f"results/grows/{name} " in said and "restore it from git" in said
        (root / "results/grows" / name).write_bytes(content)
    reread(published, "evaluate")
    assert (root / "reports/grows/verdicts.json").read_bytes() == published_verdicts

    names = ("digests.json", "published.json", "job.json", "evaluation/published/metrics.json")
    folders = sorted(path.parent for path in root.glob("runs/*/published.json"))
    for name, folder in zip(names, folders, strict=True):
        (folder / name).write_bytes(b"")
        said = reread(published, "evaluate", code=2).stderr
        assert f"remove runs/{folder.name} and run again" in said
        shutil.rmtree(folder)
    shutil.rmtree(root / "reports")
    reread(published, "evaluate")
    assert all((folder / name).stat().st_size for name, folder in zip(names, folders, strict=True))
    assert (root / "reports/grows/verdicts.json").read_bytes() == published_verdicts
