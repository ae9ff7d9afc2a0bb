"""DVC and Prefect are two doors to one core: equal results, nothing trained twice, data.dvc never rewritten."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from reread.storage.ledger import add_reads, read_ledger

LEDGER = "results/test-reads.jsonl"
RUNS = "results/default/runs.json"
NEW_NETWORK = '''"""Mean of the word vectors: the smallest reader of documents."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from reread.storage.settings import Range

KIND = "text"


@dataclass(frozen=True)
class Settings:
    embedding: Annotated[int, Range(1, 4096)] = 16


DEBUG = Settings(embedding=4)


class MeanOfWords(nn.Module):
    def __init__(self, settings, vocabulary_size, classes):
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary_size, settings.embedding, mode="mean", padding_idx=0)
        self.classifier = nn.Linear(settings.embedding, classes)

    def forward(self, tokens, word_counts, sentence_counts):
        return self.classifier(self.words(tokens.flatten(1)))


def build(settings, description):
    return MeanOfWords(settings, description["vocabulary_size"], len(description["classes"]))
'''


def make_small(project):
    """Make the tiny experiment, which a flow has run in this copy, the default one."""
    tiny = (project.directory / "experiments/tiny.yaml").read_text()
    assert tiny.count("activation: swish}") == 1
    # Its default, written out: a parameter of DVC's must be there to be changed.
    small = tiny.replace("activation: swish}", "activation: swish, growth_rate: 4}")
    (project.directory / "experiments/default.yaml").write_text(small)
    # What the default experiment's tuning chose is not for it.
    shutil.rmtree(project.directory / "results/default-tuning")
    ledger = project.directory / LEDGER
    # Earlier reads count by data set, so all entries stay; those of the default one are another's.
    names = {"tiny": "default", "default": "other"}
    reads = [replace(entry, reader=names.get(entry.reader, entry.reader)) for entry in read_ledger(ledger)]
    ledger.unlink()
    add_reads(reads, ledger)
    (project.directory / "dvc.lock").unlink(missing_ok=True)
    project.run("dvc", "commit", "--quiet", "data.dvc")
    project.run("python", "-m", "tasks.machine")
    return project


def run_files(project) -> dict[str, str]:
    """sha256 of the weights of each finished run, by run key."""
    return {
        path.parent.name: json.loads(path.read_text())["weights_sha256"]
        for path in (project.directory / "runs").glob("*/result.json")
    }


def modified(project) -> dict[str, float]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (project.directory / "runs").glob("*/result.json")}


def determined(folder: Path) -> dict[str, str]:
    """The parts of a report that parameters, data and source determine: all but name, times and what shows them."""
    return {
        path.name: re.sub(rf'"(experiment|name)": "{folder.name}"', r'"\1": ""', path.read_text())
        for path in folder.iterdir()
        if path.suffix in (".json", ".csv") and path.name not in ("latency.json", "digests.json")
    }


def predictions(project) -> dict[str, bytes]:
    runs = project.directory / "runs"
    return {str(path.relative_to(runs)): path.read_bytes() for path in runs.glob("*/evaluation/*/*.npy")}


def test_both_doors_give_the_same_bytes_and_dvc_takes_up_what_the_flow_trained(copy_of_finished):
    # The flow published nothing; the ledger has that it read the test split.
    assert copy_of_finished.git("status", "--porcelain", "results").split() == ["M", LEDGER]
    flow = make_small(copy_of_finished)
    data_version = (flow.directory / "data.dvc").read_bytes()
    assert len(run_files(flow)) == 4
    before, by_flow = modified(flow), determined(flow.directory / "reports/tiny")
    assert {"metrics.json", "verdicts.json", "curves.csv"} <= set(by_flow)

    # DVC reuses the flow's runs and predictions, writes the same report, and publishes it. No stage asks Prefect.
    predicted = predictions(flow)
    flow.run("dvc", "repro", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert modified(flow) == before and predictions(flow) == predicted != {}
    assert determined(flow.directory / "reports/default") == by_flow
    published = determined(flow.directory / "results/default")
    assert all(published[name] == by_flow[name] for name in ("metrics.json", "curves.csv"))
    runs = json.loads((flow.directory / RUNS).read_text())
    assert {run["run_key"]: run["weights_sha256"] for run in runs} == run_files(flow)
    assert {run["commit"] for run in runs} == {flow.git("rev-parse", "HEAD").strip()}
    assert "up to date" in flow.run("dvc", "repro").stdout

    # One variant's parameter retrains that variant alone; a new variant is one new file and one line.
    flow.git("add", ".")
    flow.git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "first")
    (flow.directory / "models/mean_of_words.py").write_text(NEW_NETWORK)
    flow.edit(
        "experiments/default.yaml", "variants:\n", "variants:\n  mean: {model: mean_of_words, data: docstrings}\n"
    )
    kill_repro_in_training(flow)
    setting = "experiments/default.yaml:variants.densenet-swish.network.growth_rate=6"
    flow.git("add", ".")
    flow.run("dvc", "exp", "run", "--name", "wider", "-S", setting, REREAD_WORKERS="1")
    assert {key: value for key, value in modified(flow).items() if key in before} == before
    trained = modified(flow).keys() - before.keys()
    jobs = [json.loads((flow.directory / f"runs/{key}/job.json").read_text()) for key in trained]
    assert sorted(job["variant"] for job in jobs) == ["densenet-swish", "mean"]
    metrics = json.loads((flow.directory / "reports/default/metrics.json").read_text())
    assert set(metrics["variants"]) == {"mean", "han", "gru-flat", "densenet-relu", "densenet-swish"}
    listed = flow.run("dvc", "exp", "show", "--csv").stdout
    assert "wider" in listed and "docstrings.mean" in listed and "calibration" not in listed

    # A clone of what is committed trains nothing, and an edit in data/ is refused, not recorded.
    flow.git("add", ".")
    flow.git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "results")
    clone = flow.directory.parent / "clone"
    flow.run("git", "clone", "--quiet", str(flow.directory), str(clone))
    fresh = type(flow)(clone, flow.environment)
    fresh.run("dvc", "repro")
    assert not (clone / "runs").exists()
    assert fresh.git("status", "--porcelain") == ""

    documents = flow.directory / "data/docstrings/documents.jsonl"
    documents.write_bytes(documents.read_bytes().replace(b"array", b"arrax", 1))
    flow.edit("params.yaml", "min_count: 5        #", "min_count: 6        #")
    refused = flow.run("dvc", "repro", "preprocess@docstrings", code=None)
    assert refused.returncode != 0
    assert "documents.jsonl" in refused.stdout + refused.stderr
    assert (flow.directory / "data.dvc").read_bytes() == data_version


def kill_repro_in_training(project) -> None:
    """Kill ``dvc repro`` and what it started once a new run has a checkpoint; dvc.lock stays as it was."""
    place = {"cwd": project.directory, "env": project.environment, "stdin": subprocess.DEVNULL}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    finished = {path.parent for path in project.directory.glob("runs/*/result.json")}
    process = subprocess.Popen(["dvc", "repro"], start_new_session=True, **place, **quiet)
    training: list[Path] = []
    while not training:
        assert process.poll() is None, "dvc repro ended before anything was trained"
        time.sleep(0.02)
        checkpoints = project.directory.glob("runs/*/checkpoints/0*")
        training = [path for path in checkpoints if path.parent.parent not in finished]
        before = (project.directory / "dvc.lock").read_bytes()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (project.directory / "dvc.lock").read_bytes() == before
    while any("reread.training" in line for line in project.processes().values()):
        time.sleep(0.05)
