"""An evaluation reads the test split once its entry is in the ledger, and not before."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reread.evaluation.__main__ import main
from reread.evaluation.run import evaluate_run, find_evaluation
from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.ledger import open_run_test_split, read_ledger
from reread.storage.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]
# A process that is killed at the first row of the test split that its network would read.
KILLED = """
import os, signal, sys
from pathlib import Path
import reread.evaluation.run
from reread.evaluation.__main__ import main
predict = reread.evaluation.run.predict
def killed(network, prepared, rows, size):
    if rows[0] == prepared.description["splits"]["test"][0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(network, prepared, rows, size)
reread.evaluation.run.predict = killed
main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def rows_of_test():
    """No test row without an entry."""


def test_without_an_entry_nothing_is_evaluated(run, text_data):
    with pytest.raises(InputError, match="corpus is read without an entry"):
        evaluate_run(run, text_data)
    assert find_evaluation(run) is None and not list(run.glob("evaluation/*/*"))
    assert evaluate_run(run, text_data, ("validation",))


def test_an_evaluation_that_is_killed_has_left_its_entry_and_no_figure(run, text_data, tmp_path):
    (tmp_path / "results").mkdir()
    command = [sys.executable, "-c", KILLED, "--test", str(run), str(text_data)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (entry,) = read_ledger(tmp_path / "results/test-reads.jsonl")
    assert entry.run == run.name and read_ledger(run / "evaluation/test-reads.jsonl") == [entry]
    assert find_evaluation(run) is None
    # It is evaluated after all, with the entry that is there.
    with open_run_test_split(
        RunFolder(run), read_json(text_data / "prepared.json"), tmp_path / "results/test-reads.jsonl"
    ) as entries:
        assert entries == [entry] and evaluate_run(run, text_data) == find_evaluation(run)


def test_a_broken_ledger_ends_in_one_line_before_the_read(run, text_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/test-reads.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit) as ended:
        main(["--test", str(run), str(text_data)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and "test-reads.jsonl, line 1" in line and find_evaluation(run) is None


def test_the_command_records_each_read_of_the_test_split(run, text_data, tmp_path, monkeypatch):
    def entries(file):
        return [json.loads(line) for line in file.read_text().splitlines()]

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, str(run), str(text_data)])
        assert not ended.value.code

    job = {**read_json(run / "job.json"), "experiment": "trial"}
    write_json(run / "job.json", job)
    monkeypatch.chdir(tmp_path)  # a bare machine: no project, and no git
    here, there = run / "evaluation/test-reads.jsonl", tmp_path / "results/test-reads.jsonl"
    call()
    assert not here.exists()
    call("--test")
    (entry,) = entries(here)
    assert (entry["reader"], entry["data"], entry["run"]) == ("trial", {"corpus": "0123abcd"}, run.name)
    call("--test")  # what is evaluated already is not read again
    assert entries(here) == [entry] and not there.exists()
    # Where there is a project, its ledger has it as well, and the date of the first read stays.
    (tmp_path / "results").mkdir()
    call("--test")
    assert entries(here) == [entry] and [read["run"] for read in entries(there)] == [run.name]
