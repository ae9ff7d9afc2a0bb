"""Paired timings of fresh processes, of two functions on the CPU, and the verdict that `reread judge` makes of them."""

import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time

import pytest
import torch

from cuda_ext import bench, pairs
from cuda_ext.case import Case
from cuda_ext.errors import KernelError
from reread.commands.app import main
from reread.storage.source import ROOT
from tests.cuda_ext import cpu_cases

MODULE, CASE = "tests.cuda_ext.cpu_cases", "1000, float32"
PROCESSES, SAMPLES = 6, 3


def run(*arguments, notes):
    command = [sys.executable, "-m", "cuda_ext.pairs", MODULE, *map(str, arguments)]
    environment = os.environ | {cpu_cases.NOTES: str(notes)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """The lines of the scores, the calls as (process, name), and the file."""
    folder = tmp_path_factory.mktemp("pairs")
    output, notes = folder / "scores.jsonl", folder / "notes"
    given = ("--processes", PROCESSES, "--samples", SAMPLES, "--output", output)
    done = run(CASE, "other", *given, notes=notes)
    assert done.returncode == 0, done.stderr
    assert "other takes " in done.stdout.splitlines()[-1]
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return lines, [line.split() for line in notes.read_text(encoding="utf-8").splitlines()], output


def test_each_unit_is_a_process_in_which_both_take_turns(timed):
    lines, calls, _ = timed
    assert [(line["seed"], line["arm"]) for line in lines] == [
        (process, arm) for process in range(PROCESSES) for arm in (bench.OWN, "other")
    ]
    by_process = [[name for _, name in group] for _, group in itertools.groupby(calls, key=lambda call: call[0])]
    assert len({process for process, _ in calls}) == len(by_process) == PROCESSES
    for process, names in enumerate(by_process):
        turns = [name for name, _ in itertools.groupby(names)]
        first = ["other", "this"] if process % 2 else ["this", "other"]
        # Once to warm up, then a sample each in turn.
        assert turns == first * (1 + SAMPLES)


def test_a_score_is_the_geometric_mean_so_that_its_log_ratio_is_that_of_the_pairs(timed):
    lines, _, _ = timed
    for own, other in in_twos(lines):
        assert len(own["samples_ms"]) == len(other["samples_ms"]) == SAMPLES
        logs = [math.log(b / a) for a, b in zip(own["samples_ms"], other["samples_ms"], strict=True)]
        assert math.isclose(math.log(other["score"] / own["score"]), statistics.fmean(logs), abs_tol=1e-12)


def test_what_comes_before_each_call_is_not_timed():
    calls = []

    def noted(name):
        return lambda x: calls.append(name) or x

    def before(x):
        calls.append("before")
        time.sleep(0.05)

    case = Case("nothing", "3", torch.float32, lambda: (torch.zeros(3),), noted("this"), {"other": noted("other")},
                noted("exact"), 1, before=before)  # fmt: skip
    own, other = pairs.measure(case, "other", process=1, samples=2)
    # Once to warm up, then a sample each in turn.
    assert calls == ["before", "other", "before", "this"] * 3
    assert max(own["samples_ms"] + other["samples_ms"]) < 50
    assert len(own["samples_ms"]) == 2 and own["environment"].keys() == {"torch", "threads"}


def in_twos(lines):
    return zip(lines[::2], lines[1::2], strict=True)


def test_reread_judge_gives_a_verdict_on_the_pairs(timed, capsys):
    lines, _, output = timed
    given = ["--treatment", "this", "--control", "other", "--margin", "5%", "--lower-is-better", "--paired", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(output), *given])
    assert ended.value.code == 0
    (entry,) = json.loads(capsys.readouterr().out)["claims"]
    ratio = math.exp(statistics.fmean(math.log(other["score"] / own["score"]) for own, other in in_twos(lines)))
    assert math.isclose(entry["ratio"]["mean"], ratio, rel_tol=1e-9)
    assert math.isclose(entry["ratio"]["margin"], 1.05)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("999, float32", "other"), f"error: {MODULE} has no case '999, float32': choose from {CASE}"),
        ((CASE, "cuDNN"), f"error: the case '{CASE}' has no peer 'cuDNN': choose from other, failing"),
        ((CASE, "other", "--samples", 0), "error: --samples is 0: give 1 or more"),
        (
            (CASE, "other", "--output", "scores.csv"),
            "error: --output is scores.csv: JSON lines are read from a file that ends in .jsonl",
        ),
        ((CASE, "failing"), "error: process 0 failed with exit code 1: RuntimeError: out of tiles"),
    ],
)
def test_what_cannot_be_timed_is_one_line_and_writes_nothing(tmp_path, given, said):
    done = run("--output", tmp_path / "scores.jsonl", *given, notes=tmp_path / "notes")
    assert (done.returncode, done.stderr) == (2, said + "\n")
    assert not list(tmp_path.glob("scores*"))


def test_a_folder_and_a_module_that_do_not_exist_are_named(tmp_path):
    done = run(CASE, "other", "--output", tmp_path / "none" / "scores.jsonl", notes=tmp_path / "notes")
    assert done.returncode == 2 and "lies in no folder that exists" in done.stderr
    with pytest.raises(KernelError, match="'conv3d' has no cases: choose from adamw, .*vector_add, or a module"):
        pairs.find_case("conv3d", CASE, "other")


def test_a_package_that_a_module_of_cases_imports_and_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cases_of_another_package.py").write_text("import reread_missing.part\ndef bench_cases(): return []\n")
    (tmp_path / "cases_of_another_version.py").write_text("from json import missing\ndef bench_cases(): return []\n")
    (tmp_path / "no_cases.py").touch()
    with pytest.raises(KernelError, match="'cases_of_another_package' cannot be imported .*'reread_missing'.*install"):
        pairs.find_case("cases_of_another_package", CASE, "other")
    with pytest.raises(KernelError, match="'cases_of_another_version' cannot be imported .*'missing' from 'json'"):
        pairs.find_case("cases_of_another_version", CASE, "other")
    for name in ("no_cases", "no_cases.part", "reread_missing.part"):
        with pytest.raises(KernelError, match=f"'{name}' has no cases: choose from "):
            pairs.find_case(name, CASE, "other")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize("size", [3, 7, 15])
def test_the_tiled_convolution_can_be_timed_beside_cudnn(size):
    case = pairs.find_case("conv2d", f"64 x 512 x 512, {size} x {size}, tiled, float32", "cuDNN")
    assert case.function.keywords == {"kernel": "tiled"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize("kernel", [name for name in bench.KERNELS if name != "gru"])
def test_no_two_cases_of_a_kernel_share_a_name(kernel):
    """The GRU's cases ask for a GPU."""
    names = [pairs.name_of(case) for case in importlib.import_module(f"cuda_ext.{kernel}.cases").bench_cases()]
    assert len(set(names)) == len(names)
