"""`reread run --dry-run`: the runs with their keys, and which verdicts can be reached; nothing is started."""

import json

import pytest

from reread.commands.app import main
from reread.storage.files import write_json
from reread.storage.run_folder import RESULT
from tasks.preprocess import preprocess
from tests.reread.commands.conftest import make_folder

ARGUMENTS = ["run", "--dry-run", "--experiment", "tiny"]


@pytest.fixture
def folder(reread, tmp_path, monkeypatch):
    """A project folder of the test's own, in which the command is called."""
    monkeypatch.chdir(make_folder(tmp_path))
    return tmp_path


def test_runs_are_known_once_their_arrays_are_prepared(reread, folder):
    from reread.planning.resolve import make_plan

    before = json.loads(reread(*ARGUMENTS, "--json"))
    assert {run["run_key"] for run in before["runs"]} == {None} and len(before["runs"]) == 8
    assert not {"runs", "prepared", "reports", ".prefect", "mlflow.db"} & {path.name for path in folder.iterdir()}
    plan = make_plan("tiny", ["densenet-relu", "densenet-swish"])
    for about in plan.preparations().values():
        preprocess.fn(about)
    first = plan.jobs()[0]
    write_json(folder / first.run_directory / RESULT, {})
    runs = json.loads(reread(*ARGUMENTS, "--json"))["runs"]
    keys = {(run["variant"], run["seed"]): run["run_key"] for run in runs if run["run_key"]}
    assert keys == {(job.variant, job.seed): job.run_key for job in plan.jobs()}
    assert [(run["variant"], run["seed"]) for run in runs if run["state"] == "cached"] == [("densenet-relu", 0)]
    printed = reread(*ARGUMENTS)
    assert "8 runs: 1 cached, 7 to train" in printed and first.run_key in printed


def test_what_can_be_reached_is_printed(reread, folder):
    printed = reread(*ARGUMENTS, "--seed", "0")
    assert "warning: hierarchy, swish: 1 seed and 2 comparisons" in printed
    answer = json.loads(reread(*ARGUMENTS, "--json"))
    assert [reach["supported"] for reach in answer["reach"]] == [False, False]
    assert answer["plan"]["name"] == "tiny" and answer["plan"]["key"]


def test_a_margin_that_is_not_set_is_noted_before_anything_is_run_or_evaluated(reread, folder, capsys):
    file = folder / "experiments/tiny.yaml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "equivalence_margin" not in line), encoding="utf-8")
    note = "note: experiments/tiny.yaml sets no equivalence_margin: 0.01 is used"
    for arguments, code in (
        (ARGUMENTS, "0"),
        (["evaluate", "--experiment", "tiny", "--set", "training.learning_rate=-1"], "2"),
    ):
        with pytest.raises(SystemExit, match=code):
            main(arguments)
        assert note in capsys.readouterr().err.splitlines()


def test_data_that_is_not_ingested_leaves_the_reach_unknown(reread, folder):
    manifest = folder / "data.manifest.json"
    value = json.loads(manifest.read_text())
    del value["datasets"]["docstrings"]
    write_json(manifest, value)
    assert "reread data docstrings" in reread(*ARGUMENTS)
    assert json.loads(reread(*ARGUMENTS, "--json"))["reach"] is None
    # Variants of the other data set are not concerned.
    assert "swish: " in reread(*ARGUMENTS, "--variant", "densenet-relu", "--variant", "densenet-swish")


def test_the_dry_run_of_a_try_writes_nothing(reread, folder):
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    printed = reread("try", "digits", "--dry-run", "--variant", "resnet", "--seeds", "2")
    assert "6 runs (4 to tune, 2 of 2 seeds)" in printed
    after = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= set((folder / ".cache").rglob("*")) | {
        folder / ".cache"
    }
    assert before.keys() <= after.keys()


def test_a_try_that_is_refused_half_way_leaves_no_experiment(folder):
    (folder / "prepared").touch()  # a file in place of the folder
    with pytest.raises(SystemExit, match="2"):
        main(["try", "digits"])
    assert not list(folder.glob("experiments/*digits*"))
