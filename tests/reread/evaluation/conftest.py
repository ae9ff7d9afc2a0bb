"""Small prepared data sets and finished runs, written as preprocessing and training write them."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import models
from reread.evaluation.records import RunRecord
from reread.goals import goal
from reread.storage.files import read_json, sha256_file, write_json, write_text
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import write_result
from tests.digests import write_digests
from tests.golden.data import write_prepared
from tests.reads import rows_of_test

__all__ = ["rows_of_test"]

WORDS = ["<pad>", "<unk>", "the", "array", "returns", "a", "<script>alert(1)</script>", "value", "of", "loss"]


def write_text_data(directory: Path, sizes: dict[str, int], classes: list[str]) -> Path:
    """Documents of 1 to 4 sentences of 1 to 6 words, with example_documents.json of the test split."""
    rng = np.random.default_rng(7)
    rows = sum(sizes.values())
    sentence_counts = rng.integers(1, 5, rows).astype(np.int32)
    word_counts = rng.integers(1, 7, (rows, 4)).astype(np.int32) * (np.arange(4) < sentence_counts[:, None])
    tokens = rng.integers(1, len(WORDS), (rows, 4, 6)) * (np.arange(6) < word_counts[..., None])
    write_prepared(
        directory,
        {
            "tokens": tokens[tokens > 0].astype(np.int32),
            "word_counts": word_counts.astype(np.int32),
            "sentence_counts": sentence_counts,
            "labels": (np.arange(rows) % len(classes)).astype(np.int32),
        },
        {
            "name": directory.name,
            "kind": "text",
            "task": "single-label",
            "classes": classes,
            "settings": {},
            "data_version": "0123abcd",
            "vocabulary_size": len(WORDS),
            "lengths": {
                level: {"quantile": 0.95, "kept": kept, "longest": 2 * kept}
                for level, kept in (("words", 6), ("sentences", 4))
            },
            "cut": {split: {"documents": size, "words_kept_share": 0.9312} for split, size in sizes.items()},
        },
        np.cumsum(list(sizes.values())).tolist(),
    )
    shown = [
        {
            "row": row,
            "id": f"document {row} & more",
            "words": [
                [WORDS[token] for token in tokens[row, s, : word_counts[row, s]]] for s in range(sentence_counts[row])
            ],
        }
        for row in range(rows - sizes["test"], rows)
    ]
    write_json(directory / "example_documents.json", shown[:40])
    return directory


def write_image_data(
    directory: Path, sizes: dict[str, int], classes: list[str], task: str = "single-label", side: int = 8, **arrays
) -> Path:
    """Images of one channel with one label, or with several; ``arrays`` are written beside them."""
    rng = np.random.default_rng(3)
    rows = sum(sizes.values())
    labels = np.arange(rows, dtype=np.int32) % len(classes)
    if task == "multi-label":
        labels = (rng.random((rows, len(classes))) < 0.4).astype(np.uint8)
    return write_prepared(
        directory,
        {"images": rng.integers(0, 256, (rows, side, side, 1), dtype=np.uint8), "labels": labels, **arrays},
        {
            "name": directory.name,
            "kind": "image",
            "task": task,
            "classes": classes,
            "settings": {},
            "data_version": "fedc9876",
            "mean": [0.5],
            "deviation": [0.25],
        },
        np.cumsum(list(sizes.values())).tolist(),
    )


def write_run(directory: Path, variant: str, model: str, data: str, seed: int, epochs: int = 6) -> Path:
    """All that a finished run leaves but the weights."""
    directory.mkdir(parents=True)
    write_json(
        directory / "job.json",
        {
            "run_key": directory.name,
            "variant": variant,
            "model": model,
            "data": data,
            "seed": seed,
            "network": {},
            "training": {"learning_rate": 0.003, "max_epochs": 30},
        },
    )
    header = "epoch,learning_rate,training_loss,training_accuracy,validation_loss,validation_accuracy,validation_score,"
    lines = [
        f"{epoch},0.001,{2 / epoch + 0.02 * seed:.6g},0.5,{2 / epoch**0.6 + 0.03 * seed:.6g},0.5,0.5,1,"
        f"{2 / epoch**0.6 + 0.05 * seed:.6g}"
        for epoch in range(1, epochs + 1)
    ]
    write_text(
        directory / "history.csv", header + "gradient_norm,validation_comparable_loss\n" + "\n".join(lines) + "\n"
    )
    write_json(directory / "timing.json", {"seconds": 12.5 + seed})
    write_result(
        directory,
        {
            "run_key": directory.name,
            "variant": variant,
            "seed": seed,
            "epochs": epochs,
            "best_epoch": epochs - 2,
            "stopped": "maximum_epochs" if seed == 3 else "patience",
            "parameters": 12345,
        },
    )
    return directory


def add_weights(run_directory: Path, model: str, description: dict, seed: int, **settings) -> None:
    """Untrained weights of the debug size with ``settings``, as best.safetensors, named by result.json."""
    job = read_json(run_directory / "job.json")
    job["network"] = {**asdict(models.debug(model)), **settings}
    write_json(run_directory / "job.json", job)
    torch.manual_seed(seed)
    network = models.build(model, job["network"], description)
    weights = run_directory / "best.safetensors"
    save_file(network.state_dict(), weights)
    result = read_json(run_directory / "result.json")
    record = {"weights_sha256": sha256_file(weights), "network_source": models.network_source(model, job["network"])}
    write_result(run_directory, result | record)


def invented_probabilities(labels: np.ndarray, classes: int, skill: float, rng: np.random.Generator) -> np.ndarray:
    """Probabilities [N, K] that lean to the truth by ``skill``, for labels [N] or [N, K]."""
    truth = labels.astype(float) if labels.ndim == 2 else np.eye(classes)[labels]
    logits = skill * truth + rng.normal(size=(len(labels), classes))
    if labels.ndim == 2:
        return (1 / (1 + np.exp(skill / 2 - logits))).astype(np.float32)
    exponents = np.exp(logits)
    return (exponents / exponents.sum(axis=1, keepdims=True)).astype(np.float32)


def write_record(
    root: Path,
    variant: str,
    model: str,
    data: str,
    prepared: Path,
    seed: int,
    skill: float,
    splits=("validation", "test"),
) -> RunRecord:
    """A finished and evaluated run whose probabilities are invented: no network stands behind it."""
    run = write_run(root / f"{variant}-{seed}", variant, model, data, seed)
    opened = open_prepared(prepared)
    rng = np.random.default_rng([seed, sum(map(ord, variant))])
    evaluation = run / "evaluation" / "key"
    evaluation.mkdir(parents=True)
    labels = {split: np.array(opened.labels[opened.rows(split)]) for split in splits}
    probabilities = {
        split: invented_probabilities(of_split, len(opened.classes), skill, rng) for split, of_split in labels.items()
    }
    for split, measured in probabilities.items():
        np.save(evaluation / f"{split}.npy", measured, allow_pickle=False)
    metrics = goal(opened.task).measure(probabilities, labels, opened.classes)
    write_json(evaluation / "metrics.json", {"parameters": 12345, **metrics})
    write_json(
        evaluation / "latency.json",
        {
            "unit": "seconds a document",
            "one_by_one": 0.004,
            "in_one_batch": 0.0007,
            "rows": 32,
            "device": "cpu",
            "threads": 1,
        },
    )
    return RunRecord(variant, data, seed, run, prepared, write_digests(evaluation))


@pytest.fixture
def text_data(tmp_path: Path) -> Path:
    return write_text_data(
        tmp_path / "prepared" / "corpus", {"train": 9, "validation": 30, "test": 60}, ["a", "b<i>", "c"]
    )


@pytest.fixture
def run(tmp_path: Path, text_data: Path) -> Path:
    """A finished run of an untrained network on ``text_data``."""
    directory = write_run(tmp_path / "runs" / "0", "han", "han", "corpus", seed=0)
    add_weights(directory, "han", read_json(text_data / "prepared.json"), seed=0)
    return directory


@pytest.fixture
def image_data(tmp_path: Path) -> Path:
    return write_image_data(
        tmp_path / "prepared" / "digits", {"train": 8, "validation": 12, "test": 20}, ["0", "1", "2"]
    )


@pytest.fixture
def tools() -> dict:
    """The writers above by name: a conftest cannot be imported."""
    return {name: value for name, value in globals().items() if callable(value)}
