"""A run that is killed at any moment, or loses what was not flushed to disk, ends with the bytes of one left alone."""

import json
import os
import subprocess
import sys

import pytest

from reread.storage.source import ROOT


def killed(job, *arguments):
    """One mapping a kill, of what tests.reread.training.killing prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.reread.training.killing", str(job), *arguments]
    ended = subprocess.run(command, cwd=job.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture
def job(write_job, text_directory):
    """Three epochs, of which the second is the best: its weights are written once and linked once."""
    return write_job(text_directory, model="word_average", training={"max_epochs": 3, "learning_rate": 0.3})


def test_a_kill_or_a_power_cut_at_each_operation_of_a_save_leaves_the_checkpoint_before_it(job):
    kills = killed(job, "operations")
    operations = [kill["killed at"] for kill in kills]
    for operation in ("open", "fsync", "os.rename", "os.link", "os.mkdir", "os.rmdir"):
        assert any(f": {operation} " in line for line in operations), operation
    assert len(kills) > 40 and all(kill["killed"] for kill in kills)
    assert [kill for kill in kills if kill["code"] or kill["errors"] or not kill["equal"]] == []


def test_a_kill_at_any_of_twenty_moments_changes_no_byte_of_the_end(job):
    kills = killed(job, "moments", "20")
    assert len(kills) == 20 and any(kill["killed"] and not kill["finished"] for kill in kills)
    assert [kill for kill in kills if kill["code"] or kill["errors"] or not kill["equal"]] == []
