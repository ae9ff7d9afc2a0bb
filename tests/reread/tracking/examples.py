"""Small prepared data and runs as they lie on disk after training, for tests of what comes after it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import models
from reread.preprocessing.text import number, segment
from reread.preprocessing.vocabulary import word_index
from reread.storage.files import content_key, sha256_file, write_json, write_text
from reread.storage.job import Job
from reread.storage.run_folder import write_result
from reread.storage.source import ROOT
from reread.tracking.times import Times, now
from tests.digests import write_digests

TEXTS = [
    "Return the sum of two numbers. Both must be positive.",
    "Draw a line from one point to another. The colour is black.",
    "Fit the model to the data! Predictions follow. Nothing else is done.",
    "Open a file and read it. Close it afterwards.",
    "Plot a curve. Axes are shared.",
    "",
]
KEPT = (3, 6)


def start(code: str, *arguments: str) -> subprocess.Popen:
    """Start a Python process that imports from the project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def steps(tracking, run_id: str, key: str) -> list[int]:
    return [metric.step for metric in tracking.client.get_metric_history(run_id, key)]


def run_of(tracking, job: Job):
    """The one run of a job in MLflow."""
    wanted = f"tags.run_key = '{job.run_key}'"
    (run,) = tracking.client.search_runs([tracking.experiment(job.experiment)], wanted)
    return run


def content(tracking, run) -> tuple:
    """MLflow's record of a run, without its seed and its times."""
    seeds = {"seed", "run_key", "mlflow.runName", "mlflow.note.content", "mlflow.source.name"}
    parts = [{name: kept[name] for name in kept.keys() - seeds} for kept in (run.data.params, run.data.tags)]
    metrics = {
        name: [(metric.step, metric.value) for metric in tracking.client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    files = {file.path for file in tracking.client.list_artifacts(run.info.run_id)}
    data = [(given.dataset.name, given.dataset.digest) for given in run.inputs.dataset_inputs]
    return run.info.status, parts, metrics, files, data


def prepared_text(root: Path, task: str = "single-label") -> Path:
    """Six documents, two a split, of the classes 'draw' and 'read'."""
    words = sorted({word for text in TEXTS for sentence in segment(text) for word in sentence})
    vocabulary = ["<pad>", "<unk>", *words[::2]]
    tokens, counts = zip(*(number(segment(text), word_index(vocabulary), *KEPT) for text in TEXTS), strict=True)
    word_counts = np.stack(counts)
    labels = np.array([0, 1, 0, 1, 0, 1], np.int32)
    arrays = {
        "tokens": np.concatenate(tokens),
        "word_counts": word_counts,
        "sentence_counts": (word_counts > 0).sum(axis=1, dtype=np.int32),
        "labels": labels if task == "single-label" else np.eye(2, dtype=np.uint8)[labels],
    }
    about = {
        "kind": "text",
        "vocabulary_size": len(vocabulary),
        "settings": {"min_count": 1},
        "lengths": {level: {"kept": kept} for level, kept in zip(("sentences", "words"), KEPT, strict=True)},
    }
    folder = _write(root, f"snippets-{task}", task, ["read", "draw"], arrays, about)
    write_json(folder / "vocabulary.json", vocabulary)
    write_json(folder / "example_documents.json", [{"row": 4, "id": "4", "words": segment(TEXTS[4])}])
    return folder


def prepared_images(root: Path) -> Path:
    """Six images of 8 x 8 pixels, two a split, of the classes '0', '1' and '2'."""
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), np.uint8)
    arrays = {"images": images, "labels": np.array([0, 1, 2, 0, 1, 2], np.int32)}
    about = {"kind": "image", "mean": [0.5], "deviation": [0.25], "settings": {"rows_per_class": None}}
    return _write(root, "dots", "single-label", ["0", "1", "2"], arrays, about)


def _write(root: Path, name: str, task: str, classes: list[str], arrays: dict, about: dict) -> Path:
    folder = root / "prepared" / content_key(name)
    folder.mkdir(parents=True, exist_ok=True)
    described = {}
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
        described[key] = {
            "file": f"{key}.npy",
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": sha256_file(folder / f"{key}.npy"),
        }
    splits = {"train": [0, 2], "validation": [2, 4], "test": [4, 6]}
    common = {"schema": 1, "name": name, "task": task, "classes": classes, "splits": splits, "arrays": described}
    write_json(folder / "prepared.json", {**common, "data_version": "0123456789abcdef" * 4, **about})
    return folder


def make_job(
    root: Path,
    prepared: Path,
    model: str,
    seed: int = 0,
    variant: str | None = None,
    experiment: str = "trial",
    **training,
) -> Job:
    """A job as planning.jobs makes it, with a network of the size for tests."""
    about = {
        "variant": variant or model,
        "model": model,
        "data": "dots" if model == "densenet" else "snippets",
        "seed": seed,
        "network": vars(models.debug(model)),
        "training": {"learning_rate": 0.01, "batch_size": 2, **training},
        "experiment": experiment,
    }
    run_key = content_key(about)
    run_directory = root / "runs" / run_key
    return Job(**about, prepared=prepared, run_key=run_key, run_directory=run_directory, key_parts={"seed": seed})


def history(epochs: int, score: float = 0.9) -> list[dict[str, float]]:
    """Rows as history.csv has them."""
    return [
        {
            "epoch": epoch,
            "training_loss": 1 / epoch,
            "validation_loss": 1.5 / epoch,
            "validation_score": score * epoch / epochs,
        }
        for epoch in range(1, epochs + 1)
    ]


def write_history(folder: Path, rows: list[dict[str, float]]) -> None:
    lines = [",".join(rows[0]), *(",".join(f"{value:.6g}" for value in row.values()) for row in rows)]
    write_text(folder / "history.csv", "\n".join(lines) + "\n")


class Followed:
    """A run as tasks.train follows it: its folder and MLflow's run grow with each epoch."""

    def __init__(self, job: Job, record: Callable[..., str | None], about: dict | None = None) -> None:
        self.job, self.recorded, self.rows = job, record, []
        job.write()
        write_json(job.run_directory / "origin.json", about or {})
        self.times = Times.begin(job.run_directory)
        self.id = record(job, live=True)

    def epoch(self, row: dict[str, float]) -> None:
        self.rows.append(row)
        write_history(self.job.run_directory, self.rows)
        self.times.epochs[str(row["epoch"])] = now()
        self.times.write(self.job.run_directory)
        self.recorded(self.job, live=True)

    def end(self, status: str = "FAILED", message: str = "") -> None:
        self.times.status, self.times.message, self.times.ended = status, message, now()
        self.times.write(self.job.run_directory)
        self.recorded(self.job)


def finish_run(job: Job, score: float = 0.9, epochs: int = 3, description: dict | None = None) -> Path:
    """Write runs/RUN_KEY/ of a finished run; with ``description`` (its prepared.json) also real weights."""
    folder = job.run_directory
    folder.mkdir(parents=True, exist_ok=True)
    job.write()
    write_history(folder, history(epochs, score))
    write_json(folder / "environment.json", {"torch": torch.__version__, "gpu": None, "driver": None})
    record = {}
    if description is not None:
        torch.manual_seed(job.seed)
        network = models.build(job.model, job.network, description)
        save_file(network.state_dict(), folder / "best.safetensors")
        record = {
            "weights_sha256": sha256_file(folder / "best.safetensors"),
            "network_source": models.network_source(job.model, job.network),
        }
    result = {
        "run_key": job.run_key,
        "seed": job.seed,
        "best_epoch": epochs,
        "epochs": epochs,
        "kernels": "none",
        "stopped": "patience",
        "parameters": 1234,
        "validation": {"score": score, "loss": 1.5 / epochs, "accuracy": score},
        **record,
    }
    write_result(folder, result)
    return folder


def evaluate_run(folder: Path, score: float = 0.9) -> Path:
    """Write its evaluation."""
    metrics = {"accuracy": score, "macro_f1": score - 0.01, "loss": 0.4, "expected_calibration_error": 0.05, "rows": 2}
    write_json(
        folder / "evaluation" / "key" / "metrics.json", {"validation": metrics, "test": metrics, "parameters": 1234}
    )
    return write_digests(folder / "evaluation" / "key")


def write_report(jobs: list[Job], folder: Path) -> Path:
    """Write reports/trial, of the runs of one variant."""
    report = folder / "reports/trial"
    seeds = {str(job.seed): {"run_key": job.run_key} for job in jobs}
    interval = {"mean": 0.9, "low": None, "high": None}
    variant = {
        "data": "snippets", "score": "accuracy", "n": len(jobs), "parameters": 1234, "seeds": seeds,
        "test": {"accuracy": interval},
    }  # fmt: skip
    verdict = {"name": "one", "verdict": "holds", "claim": "A.", "sentence": "B.", "treatment": "han", "control": "x"}
    write_json(report / "metrics.json", {"evaluated_on": "test", "variants": {"han": variant}})
    write_json(report / "plan.json", {"title": "Trial"})
    write_json(report / "verdicts.json", {"verdicts": [verdict]})
    (report / "report.html").write_text("<p>report</p>")
    return report
