"""The board of the runs that train: what a terminal and a log show, and how long the whole takes."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from reread.storage.job import Job
from reread.storage.source import ROOT
from tasks import board
from tasks.board import TITLES, Board, duration


def job(variant: str, seed: int) -> Job:
    return Job(
        run_key="0", experiment="tiny", variant=variant, model="han", data="snippets", seed=seed, network={},
        training={"max_epochs": 10}, prepared=Path("prepared/0"), run_directory=Path("runs/0"),
    )  # fmt: skip


JOBS = [job("han", 0), job("han", 1), job("gru", 0)]


def test_the_whole_takes_what_its_runs_take(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    whole = Board()
    whole.expect(JOBS, workers=2)
    assert whole.seconds_left() is None and whole.status() == "0 of 3 runs finished, 0 training, 3 waiting"
    row = whole.begin(JOBS[0])
    row.began, row.seconds_left = 0.0, 30.0
    now = 10.0
    # han seed 0: 30 s to go; seed 1 takes 40 as it does; gru is not known: 40 as well.
    assert whole.seconds_left() == pytest.approx((30 + 40 + 40) / 2)
    whole.end(JOBS[0], trained=True)
    assert whole.seconds_left() == pytest.approx((10 + 10) / 2)
    whole.begin(JOBS[1]).seconds_left = 25.0
    # One worker alone is busy for longer than the mean.
    assert whole.seconds_left() == 25.0
    whole.end(JOBS[2], trained=False)
    assert whole.status() == "2 of 3 runs finished, 1 training, 0 waiting; at most 25 s left"


def test_a_log_has_a_line_per_minute_and_no_table(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(board, "AT_TERMINAL", True)
    whole = Board()
    whole.expect(JOBS, workers=1)
    row = whole.begin(JOBS[0])
    for _ in range(30):
        clock[0] += 5
        row.epoch, row.seconds_left = 1, 100.0
        whole.draw()
    assert whole.live is None
    printed = capsys.readouterr().out
    assert printed.count("0 of 3 runs finished, 1 training, 2 waiting") == 2 and "\x1b" not in printed


def test_a_row_has_the_figures_of_its_run():
    whole = Board()
    row = whole.begin(job("han", 3))
    row.epoch, row.loss, row.validation, row.samples_per_second, row.seconds_left = 4, 0.5, 0.875, 1234.0, 75.0
    assert row.cells() == ["han", "3", "4/10", "0.5000", "0.8750", "1,234", "1 min 15 s"]
    assert len(row.cells()) == len(whole.table().columns)


def test_a_long_name_leaves_the_figures_whole_at_80_columns():
    whole = Board()
    row = whole.begin(job("word-average/learning_rate=0.003,embedding_dim=128", 100))
    row.loss, row.validation, row.samples_per_second, row.seconds_left = 0.5, 0.875, 12345.0, 4000.0
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(whole.table())
    shown = console.export_text()
    assert "…" not in shown and {"0.5000", "0.8750", "12,345", *TITLES[:5]} <= set(shown.split())


def test_durations():
    spoken = {None: "", 7.4: "7 s", 75: "1 min 15 s", 120: "2 min", 1500: "25 min", 7500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in spoken} == spoken


SCRIPT = """
from rich.text import Text
from reread.commands.options import print_table
from tasks.board import BOARD
from tests.tasks.test_board import job

BOARD.expect([job("han", 7), job("han", 8)], 1)
BOARD.begin(job("han", 7))
BOARD.draw()
BOARD.end(job("han", 7), trained=True)
print_table(Text("supported", style="bold green"))
"""


def in_terminal(**environment: str) -> str:
    """Run SCRIPT in a terminal of its own and return what it printed there."""
    controller, terminal = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal,
        env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    os.close(terminal)
    printed = b""
    with contextlib.suppress(OSError):  # the terminal is closed where the process ends
        while part := os.read(controller, 4096):
            printed += part
    os.close(controller)
    assert process.wait(60) == 0, printed
    return printed.decode()


def test_a_terminal_has_a_table_and_colours_where_they_are_wanted():
    usual, plain, quiet = in_terminal(), in_terminal(NO_COLOR="1"), in_terminal(CI="1")
    green = "\x1b[1;32msupported"
    assert "validation" in usual and "1 training, 1 waiting" in usual and green in usual
    assert "1 training, 1 waiting" in plain and "supported" in plain and "32m" not in plain
    assert "training" not in quiet and "supported" in quiet
