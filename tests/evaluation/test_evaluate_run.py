"""One run from weights to metrics: probabilities, what is left unread, and what is refused."""

import ast
import json
import shutil
import sys

import numpy as np
import pytest
import torch

from evaluation.__main__ import main
from evaluation.run import evaluate_run, evaluation_key, find_evaluation, trained_on
from models.objectives import DEFAULT, make_objective, to_probabilities
from storage.errors import InputError
from storage.files import read_json, write_json
from storage.source import closure


@pytest.fixture
def run(tools, tmp_path, text_data):
    directory = tools["write_run"](tmp_path / "runs" / "0", "han", "han", "corpus", seed=0)
    tools["add_weights"](directory, "han", read_json(text_data / "prepared.json"), seed=0)
    return directory


def test_a_run_is_measured_once(run, text_data):
    found = evaluate_run(run, text_data)
    assert found == run / "evaluation" / evaluation_key()
    assert sorted(path.name for path in found.iterdir()) == [
        "latency.json",
        "metrics.json",
        "test.npy",
        "validation.npy",
    ]
    metrics, probabilities = read_json(found / "metrics.json"), np.load(found / "test.npy", allow_pickle=False)
    assert probabilities.shape == (60, 3) and probabilities.dtype == np.float32
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    labels = np.load(text_data / "labels.npy")[39:]
    assert metrics["test"]["accuracy"] == (probabilities.argmax(axis=1) == labels).mean()
    assert metrics["parameters"] > 100 and set(metrics) == {"parameters", "validation", "test"}
    before = (found / "metrics.json").stat().st_mtime_ns
    assert evaluate_run(run, text_data) == found and (found / "metrics.json").stat().st_mtime_ns == before


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
    found = evaluate_run(run, text_data, splits=("validation",))
    assert not (found / "test.npy").exists() and "test" not in read_json(found / "metrics.json")
    assert found != evaluate_run(run, text_data)


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
    with pytest.raises(InputError, match="has not finished"):
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


def test_an_evaluation_made_on_the_gpu_that_trained_is_taken_up(run, text_data):
    """By its key, which names that GPU; without weights too, and before one of the CPU."""
    here = evaluate_run(run, text_data)
    write_json(run / "environment.json", {"gpu": "NVIDIA H200"})
    assert trained_on(run) == "NVIDIA H200" and find_evaluation(run) == here
    there = here.with_name(evaluation_key(gpu="NVIDIA H200"))
    assert len({there, here, here.with_name(evaluation_key(gpu="another"))}) == 3
    here.rename(there)
    (run / "best.safetensors").unlink()
    assert evaluate_run(run, text_data) == find_evaluation(run) == there
    assert find_evaluation(run, ("validation",)) is None
    with pytest.raises(
        InputError, match="neither an evaluation of the validation split .* nor weights: run `python -m"
    ):
        evaluate_run(run, text_data, ("validation",))
    assert [path.name for path in (run / "evaluation").iterdir()] == [there.name]


def test_an_evaluation_made_on_this_machine_s_gpu_of_a_run_that_another_trained_is_taken_up(
    run, text_data, monkeypatch
):
    here = evaluate_run(run, text_data)
    there = here.rename(here.with_name(evaluation_key(gpu="NVIDIA A100")))
    write_json(run / "environment.json", {"gpu": "NVIDIA H200"})
    assert find_evaluation(run) is None
    monkeypatch.setattr("evaluation.run.gpu_here", lambda: "NVIDIA A100")
    assert find_evaluation(run) == evaluate_run(run, text_data) == there


def test_a_run_that_a_gpu_trained_is_evaluated_on_the_cpu_where_there_is_none(run, text_data, monkeypatch):
    on_cpu = evaluate_run(run, text_data)
    kept = {path.name: path.read_bytes() for path in on_cpu.iterdir()}
    shutil.rmtree(on_cpu)
    write_json(run / "environment.json", {"gpu": "NVIDIA H200"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert evaluate_run(run, text_data) == on_cpu
    assert (on_cpu / "test.npy").read_bytes() == kept["test.npy"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_predictions_on_a_gpu_repeat_and_are_those_of_the_cpu(run, text_data):
    on_cpu = np.load(evaluate_run(run, text_data) / "test.npy")
    write_json(run / "environment.json", {"gpu": torch.cuda.get_device_name()})
    shutil.rmtree(run / "evaluation")
    first = evaluate_run(run, text_data)
    assert first.name == evaluation_key(gpu=torch.cuda.get_device_name())
    kept = {path.name: path.read_bytes() for path in first.iterdir()}
    assert json.loads(kept["latency.json"])["device"] == "cpu"
    shutil.rmtree(run / "evaluation")
    evaluate_run(run, text_data)
    for name in ("metrics.json", "validation.npy", "test.npy"):
        assert (first / name).read_bytes() == kept[name]
    assert np.load(first / "test.npy") == pytest.approx(on_cpu, abs=1e-4)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_command_evaluates_many_runs_and_tells_which_it_cannot(run, text_data, tools, tmp_path, capsys):
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
    key = evaluation_key(("validation",))
    assert output.splitlines() == [str(folder / "evaluation" / key) for folder in (run, other)]
    # The test split is read when it is asked for.
    assert not list(tmp_path.rglob("test.npy"))
    code, output, _ = call("--test", run)
    assert code == 0 and len(list(tmp_path.rglob("test.npy"))) == 1
    for wrong, said in (
        ([text_data], "is prepared data and follows no run"),
        ([run, text_data, text_data], "is prepared data and follows no run"),
        ([tmp_path], "is no run and no prepared data"),
    ):
        code, output, errors = call(*wrong)
        assert (code, output) == (2, "") and said in errors and errors.count("\n") == 1


def test_the_command_needs_what_a_machine_that_trains_has():
    """torch, numpy, safetensors, scikit-learn and scipy: no pandas, no matplotlib, no jinja2."""
    allowed = {
        "torch",
        "numpy",
        "safetensors",
        "sklearn",
        "scipy",
        "storage",
        "cuda_ext",
        "models",
        "batches",
        "kinds",
        "evaluation",
    }
    for path in closure(["evaluation.__main__"]):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names
            assert tops <= allowed, f"{path} imports {tops - allowed}"


def test_probabilities_do_not_overflow():
    logits = np.array([[1000, -1000], [0, 0]], np.float32)
    for task in ("single-label", "multi-label"):
        objective = make_objective(DEFAULT, {"task": task})
        assert to_probabilities(objective, logits) == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))
