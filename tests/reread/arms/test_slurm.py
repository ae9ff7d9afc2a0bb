"""Commands on Slurm: a real cluster of one node, with a command that is slow, one that fails, and another machine."""

import json
import subprocess
import time

import pytest

from tests.tasks import slurm_node

pytestmark = pytest.mark.debian


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := slurm_node.missing():
        pytest.skip(reason)
    with slurm_node.slurm_node(tmp_path_factory.mktemp("cluster") / "slurm") as variables:
        yield variables


def arrays(claim):
    return [json.loads(path.read_text())["tasks"] for path in sorted((claim.folder / ".reread/slurm").glob("*.json"))]


def test_runs_on_slurm_give_the_verdict_of_this_machine_and_are_cached(claim, cluster):
    printed, said = claim.run("--on", "slurm", "--json", **cluster, REREAD_RUNS_PER_JOB="4")
    assert json.loads(printed)["claims"][0]["verdict"] == "supported"
    assert "12 runs in 3 tasks" in said and [len(tasks) for tasks in arrays(claim)] == [3]
    assert set(claim.states().values()) == {"cached"}
    assert json.loads(claim.run("--json")[0])["claims"] == json.loads(printed)["claims"]
    assert len(arrays(claim)) == 1


def test_a_command_on_slurm_sees_the_variables_of_its_user(claim, cluster):
    claim.commit("(out / 'threads').write_text(os.environ.get('OMP_NUM_THREADS', 'none'))\n")
    claim.run("--on", "slurm", "--seeds", "2", **cluster)
    assert {path.read_text() for path in claim.folder.glob(".reread/runs/*/out/threads")} == {"none"}


def test_a_command_that_is_stopped_leaves_its_runs_to_slurm_and_waits_for_them_when_it_starts_again(claim, cluster):
    gate = claim.folder / "gate"
    claim.commit(f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\n", base=0.79)
    process = claim.start("--on", "slurm", **cluster)
    deadline = time.monotonic() + 60
    while not arrays(claim):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    gate.touch()
    claim.run("--on", "slurm", **cluster)
    assert len(arrays(claim)) == 1
    assert {(run / "out/began").read_text() for run in claim.runs if run.suffix != ".lock"} == {"x"}


def test_a_run_that_fails_on_slurm_is_named_with_its_log_and_submitted_again(claim, cluster):
    gate = claim.folder / "gate"
    claim.commit(f"if seed == 1 and not pathlib.Path({str(gate)!r}).exists(): sys.exit('no gate')\n", base=0.79)
    _, said = claim.run("--on", "slurm", code=2, **cluster)
    line = said.strip().splitlines()[-1]
    assert "1 of 12 runs ended on Slurm without scores, control, seed 1 first" in line and "log.txt" in line
    gate.touch()
    claim.run("--on", "slurm", **cluster)
    assert [sum(map(len, tasks)) for tasks in arrays(claim)].count(1) == 1


def test_nodes_of_another_kind_are_described_by_a_file_or_refused(claim, cluster):
    here = subprocess.run(
        ["python", "-m", "reread.arms.machine"], capture_output=True, text=True, check=True, env=claim.environment()
    ).stdout
    file = claim.folder / "machine.json"
    file.write_text(json.dumps({**json.loads(here), "gpus": ["Another GPU"]}))
    cluster = {**cluster, "REREAD_MACHINE": str(file)}
    claim.run("--on", "slurm", "--seeds", "2", code=2, **cluster)
    logs = [path.read_text() for path in claim.folder.glob(".reread/slurm/*_log.out")]
    assert len(logs) == 4 and all("REREAD_MACHINE" in log and "Another GPU" in log for log in logs)
    file.write_text(here)
    claim.run("--on", "slurm", "--seeds", "2", **cluster)
    assert set(claim.states().values()) <= {"cached", "run"} and len(claim.runs) >= 4
    file.write_text("{}")
    assert "python -m reread.arms.machine" in claim.run("--on", "slurm", code=2, **cluster)[1]
