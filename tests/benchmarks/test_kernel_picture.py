"""The kernels' committed report as a picture."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.source import ROOT

REPORT = sorted(Path(ROOT, "cuda_ext", "results").glob("*.json"))[-1]


def draw(*arguments):
    command = [sys.executable, "-m", "benchmarks.kernel_picture", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_committed_report_is_drawn_the_same_each_time(tmp_path):
    pictures = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in pictures:
        done = draw(REPORT, path)
        assert done.returncode == 0, done.stderr
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


def test_a_kernel_that_is_gone_is_left_out(tmp_path):
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    gone = tmp_path / "gone.json"
    pictures = [tmp_path / "one.png", tmp_path / "two.png"]
    unknown = {**report["results"][0], "kernel": "of_long_ago"}
    for results, path in zip((report["results"], [unknown, *report["results"]]), pictures, strict=True):
        gone.write_text(json.dumps({**report, "results": results}), encoding="utf-8")
        assert draw(gone, path).returncode == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    gone.write_text(json.dumps({**report, "results": [unknown]}), encoding="utf-8")
    done = draw(gone, tmp_path / "none.png")
    assert done.returncode == 2 and done.stderr.startswith(f"error: {gone} has none of the kernels adamw, ")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("content", ["{}", "[]", '{"results": [{"batch": 64}]}'])
def test_a_file_without_results_is_one_line(tmp_path, content):
    empty = tmp_path / "empty.json"
    empty.write_text(content)
    done = draw(empty, tmp_path / "none.png")
    assert done.returncode == 2
    assert done.stderr == f"error: {empty} holds no results: give a report of `python -m cuda_ext.report`\n"
    assert not (tmp_path / "none.png").exists()
