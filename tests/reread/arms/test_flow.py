"""The runs of a claim in Prefect and MLflow, which decide nothing."""

import shutil
import signal
import sqlite3
import subprocess
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from reread.storage.source import ROOT
from tests.reread.arms.test_kills import HANGS, hangs, processes, until


@pytest.fixture
def databases(claim, empty_databases):
    shutil.copytree(empty_databases, claim.folder, dirs_exist_ok=True)


def states(claim, table: str) -> dict[str, str]:
    with sqlite3.connect(claim.folder / ".prefect/prefect.db") as database:
        return dict(database.execute(f"select name, state_name from {table}"))


def test_each_run_is_a_task_and_a_run_of_mlflow_once(claim, databases):
    claim.write(seeds=2)
    claim.run("--flow")
    claim.run("--flow", "--workers", "2")
    names = {f"{arm}-{seed}" for arm in ("control", "treatment") for seed in (0, 1)}
    assert states(claim, "task_run") == dict.fromkeys(names, "Completed")
    assert states(claim, "flow_run") == {"claim": "Completed"}
    client = MlflowClient(f"sqlite:///{claim.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("claim-claim")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 4 and runs["treatment-seed-1"].data.metrics == {"accuracy": 0.825 + 0.003}
    assert runs["treatment-seed-1"].data.params["commit"] == claim.git("rev-parse", "idea")
    files = {file.path for file in client.list_artifacts(runs["treatment-seed-1"].info.run_id)}
    assert files == {"job.json", "log.txt", "result.json", "timing.json"}


@pytest.mark.parametrize("folder", ["", "claims [1]"])
def test_git_sees_nothing_that_a_flow_leaves_also_in_a_worktree(claim, databases, folder):
    """The password of secret.env is in no `git add --all`."""
    tree = claim.folder / "tree"
    claim.git("worktree", "add", "--quiet", "--detach", str(tree))
    place = tree / folder
    place.mkdir(exist_ok=True)
    claim.write(seeds=2, repository=str(claim.repository))
    for name in ("mlflow.db", ".prefect", "claim.yaml"):
        (claim.folder / name).rename(place / name)
    exclude = claim.repository / ".git/info/exclude"
    exclude.write_text("*.log")
    there = replace(claim, folder=place)
    there.run("--flow")
    assert {"secret.env", "mlflow.db", "mlartifacts", ".prefect", ".locks"} <= {path.name for path in place.iterdir()}
    seen = ["git", "status", "--porcelain", "--untracked-files=all", "-z"]
    assert subprocess.check_output(seen, cwd=tree, text=True) == f"?? {place.relative_to(tree) / 'claim.yaml'}\0"
    once = exclude.read_text()
    assert once.startswith("*.log\n/")
    there.run("--flow")
    assert exclude.read_text() == once


def test_without_mlflow_the_verdict_is_given(claim, prefect_api):
    claim.write(seeds=2)
    (claim.folder / "mlflow.db").write_text("no database")
    printed, said = claim.run("--flow", "--json", **prefect_api)
    assert '"verdict"' in printed and "is not in MLflow" in said


def test_without_the_packages_of_a_flow_one_line_says_so(claim):
    """The servers' guard, a process of its own, imports psutil too."""
    programs = claim.folder / "programs"
    programs.mkdir()
    (programs / "psutil.py").write_text("raise ModuleNotFoundError(name='psutil')")
    process = claim.start("--flow", PYTHONPATH=f"{programs}:{ROOT}")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and said.count("\n") == 1 and "the package 'psutil' is not installed" in said


def test_ctrl_c_ends_the_commands_of_a_flow(claim, databases):
    claim.commit(HANGS.format(go=str(claim.folder / "go"), action="SIG_DFL"))
    claim.write(seeds=2)
    process = claim.start("--flow")
    until(lambda: hangs(claim))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and processes(claim) == [], said
    assert states(claim, "flow_run") == {"claim": "Cancelled"}
