"""One run from weights to metrics: probabilities, what is left unread, and what is refused."""

import json

import numpy as np
import pytest
import torch

from evaluation.run import evaluate_run, evaluation_key, to_probabilities
from storage.errors import InputError
from storage.files import read_json


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
    assert latency["unit"] == "seconds a document" and latency["one_by_one"] > 0
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


def test_probabilities_do_not_overflow():
    logits = np.array([[1000, -1000], [0, 0]], np.float32)
    assert to_probabilities(logits, "single-label") == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))
    assert to_probabilities(logits, "multi-label") == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))
