"""The remains of a command that is killed, or whose reread is, and of two that make the same runs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

# The command of seed 1 waits, with a process in a session of its own, until the file `go` is there.
HANGS = """
go = pathlib.Path({go!r})
if seed == 1 and not go.exists():
    (out / "half").write_text("half")
    waits = "import signal, time; signal.signal(signal.SIGTERM, signal.{action}); print(flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", waits], start_new_session=True, stdout=subprocess.PIPE)
    other.stdout.readline()
    (out / "hangs").touch()
    time.sleep(600)
"""


@pytest.fixture
def hanging(claim):
    """The claim, whose control hangs at seed 1 until ``go`` is made."""

    def commit(action: str = "SIG_DFL") -> Path:
        go = claim.folder / "go"
        claim.commit(HANGS.format(go=str(go), action=action))
        claim.write(seeds=2)
        return go

    return commit


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def hangs(claim) -> bool:
    return bool(list(claim.folder.glob(".reread/runs/*/out/hangs")))


def processes(claim) -> list[str]:
    """The command lines of the processes that work in a folder of the claim."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(entry / "cwd")).is_relative_to(claim.folder):
                command_lines.append((entry / "cmdline").read_bytes().decode().replace("\0", " "))
        except OSError:
            continue
    return command_lines


def finished(claim) -> set[tuple[str, int]]:
    return {run for run, state in claim.states().items() if state == "cached"}


ALL = {(arm, seed) for arm in ("control", "treatment") for seed in (0, 1)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_reread_that_is_killed_leaves_no_process_and_nothing_that_counts_as_finished(claim, hanging, number):
    go = hanging()
    process = claim.start()
    until(lambda: hangs(claim))
    assert len(processes(claim)) >= 4  # reread, the supervisor, the command, and what that started
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), said
    if number == signal.SIGKILL:
        until(lambda: not processes(claim))
    else:
        assert processes(claim) == [] and "Traceback" not in said and "run the same command again" in said
    assert finished(claim) == {("control", 0), ("treatment", 0)}
    go.touch()
    printed, said = claim.run("--json")
    assert said.count(": cached") == 2 and json.loads(printed)["claims"] and finished(claim) == ALL
    # The run began again from nothing.
    assert not list(claim.folder.glob(".reread/runs/*/out/half"))
    assert {path.read_text() for path in claim.folder.glob(".reread/runs/*/out/began")} == {"x"}


def test_a_command_that_resumes_finds_what_it_left(claim, hanging):
    go = hanging()
    claim.write(seeds=2, resumes=True)
    process = claim.start()
    until(lambda: hangs(claim))
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not processes(claim))
    go.touch()
    claim.run()
    (half,) = claim.folder.glob(".reread/runs/*/out/half")
    assert (half.parent / "began").read_text() == "xx"


@pytest.mark.parametrize("action", ["SIG_DFL", "SIG_IGN"])
def test_the_time_limit_ends_all_that_a_command_started(claim, hanging, action):
    hanging(action)
    claim.write(seeds=2, time_limit="3 s")
    _, said = claim.run(code=2)
    assert "error: control, seed 1 passed its time limit of 3 s; its log: .reread/runs/" in said
    assert processes(claim) == [] and finished(claim) == ALL - {("control", 1)}


def test_a_command_that_ends_leaves_no_process_behind(claim):
    claim.commit('subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)')
    claim.write(seeds=2)
    claim.run()
    assert processes(claim) == []


def test_a_supervisor_that_is_killed_keeps_the_run_locked_while_its_command_lives(claim, hanging):
    go = hanging()
    process = claim.start()
    until(lambda: hangs(claim))
    (supervisor,) = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if (entry / "cmdline").exists() and f"{claim.folder}" in (entry / "cmdline").read_text(errors="replace")
        and "supervisor.py" in (entry / "cmdline").read_text(errors="replace")
    ]  # fmt: skip
    os.kill(supervisor, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "ended because its supervisor did" in said
    go.touch()
    second = claim.start()
    until(lambda: "waiting until that ends" in second.stderr.readline())
    assert second.poll() is None
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if "train.py\0001\0" in line.read_text(errors="replace") and str(claim.folder) in line.read_text():
                os.kill(int(line.parent.name), signal.SIGKILL)
        except OSError:
            continue
    second.communicate(timeout=60)
    assert second.returncode == 0 and finished(claim) == ALL


def test_two_at_once_make_each_run_once(claim):
    claim.commit("time.sleep(0.3)")
    both = [claim.start("--workers", "2", "--json") for _ in range(2)]
    ended = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    assert ended[0][0] == ended[1][0] and "waiting until that ends" in ended[0][1] + ended[1][1]
    assert {path.read_text() for path in claim.folder.glob(".reread/runs/*/out/began")} == {"x"}
