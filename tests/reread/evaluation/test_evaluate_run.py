"""One run from weights to metrics: probabilities, what is left unread, and what is refused."""

import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.objectives import DEFAULT, make_objective, to_probabilities
from reread.evaluation.__main__ import main
from reread.evaluation.records import RunRecord
from reread.evaluation.run import (
    evaluate_run,
    evaluation_key,
    find_evaluation,
    machine_here,
    source,
    task_of,
    training_machine,
)
from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.run_folder import RunFolder
from reread.storage.source import closure
from tests.damage import damages
from tests.rooms import copy_rooms


def test_a_run_is_measured_once(run, text_data):
    folder = evaluate_run(run, text_data)
    assert folder == run / "evaluation" / evaluation_key(RunFolder(run))
    assert sorted(path.name for path in folder.iterdir()) == [
        "digests.json",
        "latency.json",
        "metrics.json",
        "test.npy",
        "validation.npy",
    ]
    metrics, probabilities = read_json(folder / "metrics.json"), np.load(folder / "test.npy", allow_pickle=False)
    assert probabilities.shape == (60, 3) and probabilities.dtype == np.float32
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    labels = np.load(text_data / "labels.npy")[39:]
    assert metrics["test"]["accuracy"] == (probabilities.argmax(axis=1) == labels).mean()
    assert metrics["parameters"] > 100 and set(metrics) == {"parameters", "validation", "test"}
    before = (folder / "metrics.json").stat().st_mtime_ns
    assert evaluate_run(run, text_data) == folder and (folder / "metrics.json").stat().st_mtime_ns == before


def test_two_evaluations_are_byte_equal_but_for_the_time(run, text_data):
    threads = torch.get_num_threads()
    first = evaluate_run(run, text_data)
    kept = {path.name: path.read_bytes() for path in first.iterdir()}
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    second = evaluate_run(run, text_data)
    for name in ("metrics.json", "validation.npy", "test.npy"):
        assert (second / name).read_bytes() == kept[name]
    latency = json.loads(kept["latency.json"])
    assert latency["unit"] == "seconds per document" and latency["one_by_one"] > 0
    assert torch.get_num_threads() == threads


def test_a_split_that_is_not_named_is_not_read(run, text_data):
    folder = evaluate_run(run, text_data, splits=("validation",))
    assert not (folder / "test.npy").exists() and "test" not in read_json(folder / "metrics.json")
    assert folder != evaluate_run(run, text_data)


def test_images_with_several_labels(tools, tmp_path):
    data = tools["write_image_data"](
        tmp_path / "prepared" / "xray", {"train": 8, "validation": 12, "test": 20}, ["a", "b", "c"], "multi-label"
    )
    directory = tools["write_run"](tmp_path / "runs" / "1", "densenet", "densenet", "xray", seed=1)
    tools["add_weights"](directory, "densenet", read_json(data / "prepared.json"), seed=1)
    metrics = read_json(evaluate_run(directory, data) / "metrics.json")
    assert 0 <= metrics["test"]["macro_auroc"] <= 1 and "accuracy" not in metrics["test"]


def test_an_unfinished_run_and_a_damaged_array_are_refused_and_nothing_is_left(run, text_data):
    result = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    with pytest.raises(InputError, match="has no result.json"):
        evaluate_run(run, text_data)
    (run / "result.json").write_bytes(result)
    tokens = bytearray((text_data / "tokens.npy").read_bytes())
    tokens[-1] ^= 1
    (text_data / "tokens.npy").write_bytes(tokens)
    with pytest.raises(InputError, match="does not match its sha256"):
        evaluate_run(run, text_data)
    with pytest.raises(InputError, match="no such split: tset"):
        evaluate_run(run, text_data, splits=("tset",))
    assert not (run / "evaluation").exists()


H200 = {"torch": "2.13.0+cu130", "numpy": "2.4.6", "gpu": "NVIDIA H200", "kernels": "extension; compiled for sm_90"}


@pytest.mark.parametrize("file", ["metrics.json", "validation.npy", "latency.json", "digests.json"])
def test_each_damage_of_an_evaluation_is_found(run, text_data, file):
    folder = evaluate_run(run, text_data)
    record = RunRecord("han", "corpus", 0, run, text_data, folder)

    def read():
        contents = record.metrics(["validation"]), record.probabilities("validation"), record.probabilities("test")
        return (*contents, record.latency, RunFolder(run).evaluations())

    read()
    for damage in damages(folder / file):
        with pytest.raises(InputError, match=f"remove {folder} and evaluate the run again"):
            assert not read(), damage
    read()


def test_the_key_is_of_all_that_decides_the_evaluation(run, text_data, monkeypatch):
    def key(machine=None):
        return evaluation_key(RunFolder(run), ("validation",), machine)

    keys = {key(), key(H200), key(H200 | {"kernels": "reference"})}
    keys |= {key(H200 | {"gpu": "NVIDIA A100"}), key(H200 | {"torch": "2.11.0+cu130"}), evaluation_key(RunFolder(run))}
    keys.add(key(H200 | {"numpy": "2.5.2"}))
    numeric, cpu, gpu = source("classification", task_of(RunFolder(run))), key(), key(H200)
    # A kernel that HAN calls counts where kernels run.
    monkeypatch.setattr(
        "reread.evaluation.run.source", lambda objective, task: replace(numeric, kernels={"gru": "another"})
    )
    assert key() == cpu and key(H200) != gpu
    monkeypatch.setattr("reread.evaluation.run.source", lambda objective, task: replace(numeric, digest="another"))
    keys.add(key())
    write_json(run / "job.json", read_json(run / "job.json") | {"run_key": "another"})
    keys.add(key())
    assert len(keys) == 9


def test_an_evaluation_made_on_the_gpu_that_trained_is_reused(run, text_data):
    """By its key, which names that GPU and its kernels; without weights too."""
    here = evaluate_run(run, text_data)
    recorded = {**H200, "kernels": "extension 0123456789abcdef; compiled for sm_90", "host": "a machine with GPUs"}
    write_json(run / "environment.json", recorded)
    assert training_machine(RunFolder(run)) == H200 and find_evaluation(run) == here
    there = here.rename(here.with_name(evaluation_key(RunFolder(run), machine=H200)))
    (run / "best.safetensors").unlink()
    assert evaluate_run(run, text_data) == find_evaluation(run) == there
    assert find_evaluation(run, ("validation",)) is None
    with pytest.raises(
        InputError,
        match=r"best\.safetensors and no evaluation of the validation split .* `python -m reread.evaluation ",
    ):
        evaluate_run(run, text_data, ("validation",))
    assert [path.name for path in (run / "evaluation").iterdir()] == [there.name]


def test_an_evaluation_made_on_this_machine_s_gpu_of_a_run_that_another_trained_is_reused(run, text_data, monkeypatch):
    here = evaluate_run(run, text_data)
    a100 = H200 | {"gpu": "NVIDIA A100"}
    there = here.rename(here.with_name(evaluation_key(RunFolder(run), machine=a100)))
    write_json(run / "environment.json", H200)
    assert find_evaluation(run) is None
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("reread.evaluation.run.this_gpu", lambda: gpu)
    monkeypatch.setattr(
        "reread.evaluation.run.machine_here", lambda device: a100 if device == gpu else machine_here(device)
    )
    assert find_evaluation(run) == evaluate_run(run, text_data) == there


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("import torch\n", "# A comment.\nimport torch\n", False),
        ("LENGTH_GROUPS = 2", "LENGTH_GROUPS = 3", True),
    ],
)
def test_a_run_whose_network_s_code_has_changed_is_not_evaluated(run, text_data, tmp_path, before, after, changed):
    """In a copy of the project, by the command: a constant in models/han.py decides, a comment does not."""
    project = copy_rooms(tmp_path / "project")
    network = project / "models/han.py"
    text = network.read_text()
    assert before in text
    network.write_text(text.replace(before, after, 1))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "reread.evaluation", str(run), str(text_data)],
        cwd=project, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if changed:
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "'han'" in done.stderr and "models/han.py" in done.stderr
        assert not (run / "evaluation").exists()
    else:
        assert done.returncode == 0, done.stderr
        # Neither is it another evaluation.
        assert done.stdout.strip() == str(find_evaluation(run, ("validation",)))


def test_a_run_that_a_gpu_trained_is_evaluated_on_the_cpu_where_there_is_none(run, text_data, monkeypatch):
    on_cpu = evaluate_run(run, text_data)
    kept = {path.name: path.read_bytes() for path in on_cpu.iterdir()}
    shutil.rmtree(on_cpu)
    write_json(run / "environment.json", {"gpu": "NVIDIA H200"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert evaluate_run(run, text_data) == on_cpu
    assert (on_cpu / "test.npy").read_bytes() == kept["test.npy"]


def test_a_run_that_a_gpu_trained_is_evaluated_under_the_gpu_lease(run, text_data, monkeypatch):
    leases = []

    @contextlib.contextmanager
    def acquire(slots):
        leases.append(slots)
        yield torch.device("cpu")
        leases.append("released")

    monkeypatch.setattr("reread.evaluation.run.acquire_gpu", acquire)
    write_json(run / "job.json", read_json(run / "job.json") | {"runs_per_gpu": 3})
    evaluate_run(run, text_data, ("validation",))
    assert leases == []
    write_json(run / "environment.json", {"gpu": "NVIDIA H200"})
    evaluate_run(run, text_data, ("test",))
    assert leases == [3, "released"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_predictions_on_a_gpu_repeat_and_are_those_of_the_cpu(run, text_data):
    on_cpu = np.load(evaluate_run(run, text_data) / "test.npy")
    write_json(run / "environment.json", {"gpu": torch.cuda.get_device_name()})
    shutil.rmtree(run / "evaluation")
    first = evaluate_run(run, text_data)
    assert first.name == evaluation_key(RunFolder(run), machine=machine_here(torch.device("cuda", 0)))
    kept = {path.name: path.read_bytes() for path in first.iterdir()}
    assert json.loads(kept["latency.json"])["device"] == "cpu"
    shutil.rmtree(run / "evaluation")
    evaluate_run(run, text_data)
    for name in ("metrics.json", "validation.npy", "test.npy"):
        assert (first / name).read_bytes() == kept[name]
    assert np.load(first / "test.npy") == pytest.approx(on_cpu, abs=1e-4)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_command_measures_the_latency_of_a_network_once(run, text_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {**read_json(run / "job.json"), "prepared": str(text_data)}
    write_json(run / "job.json", job)
    same, other = (shutil.copytree(run, tmp_path / "runs" / name) for name in ("same", "other"))
    write_json(other / "job.json", {**job, "network": {**job["network"], "dropout": 0.25}})
    with pytest.raises(SystemExit) as ended:
        main([str(run), str(same), str(other)])
    assert not ended.value.code
    first, second, third = (
        read_json(next(directory.glob("evaluation/*/latency.json"))) for directory in (run, same, other)
    )
    assert first == second and first["run"] == run.name
    assert third["run"] == "other"


def test_the_command_evaluates_many_runs_and_prints_which_it_cannot(run, text_data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the project's ledger is for its own reads
    write_json(run / "job.json", {**read_json(run / "job.json"), "prepared": str(text_data)})
    other = shutil.copytree(run, tmp_path / "runs" / "1")
    write_json(other / "job.json", {**read_json(other / "job.json"), "prepared": "elsewhere"})
    unfinished = shutil.copytree(run, tmp_path / "runs" / "2")
    (unfinished / "result.json").unlink()

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, *capsys.readouterr()

    code, output, errors = call(run, unfinished, other, text_data)
    assert code == 2 and errors.count("\n") == 1 and f"error: {unfinished} has no result.json" in errors
    keys = {folder: evaluation_key(RunFolder(folder), ("validation",)) for folder in (run, other)}
    assert output.splitlines() == [str(folder / "evaluation" / key) for folder, key in keys.items()]
    # The test split is read when it is asked for.
    assert not list(tmp_path.rglob("test.npy"))
    code, output, _ = call("--test", run)
    assert code == 0 and len(list(tmp_path.rglob("test.npy"))) == 1
    for wrong, fault in (
        ([text_data], "is prepared data and follows no run"),
        ([run, text_data, text_data], "is prepared data and follows no run"),
        ([tmp_path], "is no run and no prepared data"),
    ):
        code, output, errors = call(*wrong)
        assert (code, output) == (2, "") and fault in errors and errors.count("\n") == 1


def test_the_command_needs_what_a_machine_that_trains_has():
    """torch, numpy, safetensors, scikit-learn and scipy: no pandas, no matplotlib, no jinja2."""
    allowed = {"torch", "numpy", "safetensors", "sklearn", "scipy"}
    allowed |= {"storage", "goals", "kinds", "cuda_ext", "runtime", "models", "batches", "evaluation"}
    for path in closure(["reread.evaluation.__main__"]):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            tops = {name.removeprefix("reread.").split(".")[0] for name in names} - sys.stdlib_module_names
            assert tops <= allowed, f"{path} imports {tops - allowed}"


def test_probabilities_do_not_overflow():
    logits = np.array([[1000, -1000], [0, 0]], np.float32)
    for task in ("single-label", "multi-label"):
        objective = make_objective(DEFAULT, {"task": task})
        assert to_probabilities(objective, logits) == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))
