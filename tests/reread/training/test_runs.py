"""Whole runs as processes: what they write, that they repeat, and that they outlive kill -9."""

import contextlib
import csv
import json
import os
import pty
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import models
from cuda_ext import library
from reread.storage.errors import InputError
from reread.storage.files import sha256_file, write_json, write_text
from reread.storage.prepared import open_prepared
from reread.storage.source import ROOT
from reread.training import checkpoint
from reread.training.checkpoint import Checkpoint
from reread.training.loop import refuse_references
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.reread.training.outcome import outcome

# As on a GPU.
IN_THE_BACKGROUND = """
import sys
from reread.training import __main__, checkpoint, loop
loop.Writer = lambda background: checkpoint.Writer(True)
__main__.main(sys.argv[1:])
"""
EPOCHS = 20
LONG = {"max_epochs": EPOCHS, "patience": EPOCHS, "ema_decay": 0.9}


def start(job, *options, background=False, **keywords):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    code = ("-c", IN_THE_BACKGROUND) if background else ("-m", "reread.training")
    command = [sys.executable, "-W", "error", *code, str(job), *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | keywords
    return subprocess.Popen(command, cwd=job.parent, env=environment, text=True, **streams)


def finish(process):
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def wait_for_epoch(process, epoch):
    """Read events until the line of ``epoch``; the ones read."""
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "epoch" and events[-1]["epoch"] >= epoch:
            return events
    raise AssertionError(f"ended before epoch {epoch}: {process.stderr.read()}")


@pytest.fixture
def train_here(torch_settings):
    """Train a job in this process, without the seconds that a new one takes, and return its result."""

    def train_one(path):
        job = TrainingJob.read(path)
        return run(job, json.loads(path.read_text()), Progress(job, events=False))

    return train_one


def directory(job):
    return job.parent / "runs" / job.stem


@pytest.fixture
def whole(train_by_command, write_job, text_directory):
    """A run that was left alone, and its events."""
    job = write_job(text_directory, "whole", training=LONG)
    code, output, errors = train_by_command(job, "--events")
    assert (code, errors) == (0, "")
    return job, [json.loads(line) for line in output.splitlines()]


def test_a_killed_and_resumed_run_ends_with_the_same_bytes_as_one_left_alone(whole, write_job, text_directory):
    left_alone, events = whole
    killed = write_job(text_directory, "killed", run_key="whole", training=LONG)
    resumed_after = 0
    for epoch, with_signal, background in (
        (3, signal.SIGKILL, True),
        (8, signal.SIGTERM, False),
        (12, signal.SIGTERM, True),
    ):
        process = start(killed, "--events", background=background)
        seen = wait_for_epoch(process, epoch)
        process.send_signal(with_signal)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if with_signal is signal.SIGKILL else 143), errors
        assert not (directory(killed) / "result.json").exists()
        assert seen[0]["event"] == "started" and seen[0]["epoch"] >= resumed_after, "resumed where it was killed"
        resumed_after = epoch
        if with_signal is signal.SIGTERM:
            assert json.loads(rest.splitlines()[-1])["event"] == "failed"
    code, _, errors = finish(start(killed, background=True))
    assert (code, errors) == (0, "")
    assert outcome(directory(killed)) == outcome(directory(left_alone))
    assert "resumed after epoch" in (directory(killed) / "log.txt").read_text()
    check_what_a_run_writes(left_alone, events)


@pytest.mark.parametrize(
    "settings",
    [
        {"ema_decay": 0.9},
        {"adversarial_epsilon": 0.5, "ema_decay": 0.5},
        {"optimizer": {"name": "sgd"}},
        {"optimizer": {"name": "lars"}, "schedule": {"name": "polynomial"}},
        {"optimizer": {"name": "muon"}, "schedule": {"name": "one_cycle"}},
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes_with_averages_and_perturbations(
    train_here, write_job, text_directory, monkeypatch, settings
):
    network = {"embedding_dim": 8, "hidden_size": 4, "word_dropout": 0.2}
    jobs = [
        write_job(text_directory, name, run_key="same", network=network, training=settings)
        for name in ("left", "ended")
    ]
    train_here(jobs[0])

    class Ended(Exception):
        pass

    def end(progress, row, steps):
        if row["epoch"] == 2:
            raise Ended

    with monkeypatch.context() as context:
        context.setattr(Progress, "epoch", end)
        with pytest.raises(Ended):
            train_here(jobs[1])
    train_here(jobs[1])
    assert "resumed after epoch 2" in (directory(jobs[1]) / "log.txt").read_text()
    assert outcome(directory(jobs[0])) == outcome(directory(jobs[1]))


def test_the_best_weights_of_an_averaging_run_are_the_averages(train_here, write_job, text_directory):
    job = write_job(text_directory, training={"ema_decay": 0.9, "max_epochs": 2, "patience": 9})
    assert train_here(job)["best_epoch"] == 2, "of this data the second epoch is the better one"
    best, last = (
        load_file(path)
        for path in (directory(job) / "best.safetensors", directory(job) / "checkpoints/000002/training.safetensors")
    )
    for name, values in best.items():
        assert (values == last[f"average.{name}"]).all()
        assert name == "embedding.weight" or (values != last[f"network.{name}"]).any()


def test_a_result_has_the_learnt_betas_of_the_best_weights_by_layer(train_here, write_job, image_directory):
    network = {"depth": 10, "growth_rate": 4, "activation": {"name": "swish_beta"}}
    job = write_job(image_directory, "betas", "densenet", network=network, training={"max_epochs": 2})
    betas = train_here(job)["betas"]
    best = load_file(directory(job) / "best.safetensors")
    assert betas == {name.removesuffix(".beta"): [float(best[name])] for name in best if name.endswith(".beta")}
    assert len(betas) == 9 and any(beta != [1.0] for beta in betas.values())
    assert next(iter(betas)) == "body.1.bottleneck.1", "layers are in the network's order"
    assert "betas" not in train_here(write_job(image_directory, "relu", "densenet", training={"max_epochs": 2}))


def check_what_a_run_writes(job, events):
    run = directory(job)
    result = json.loads((run / "result.json").read_text())
    assert result["weights_sha256"] == sha256_file(run / "best.safetensors")
    assert result["stopped"] == "max_epochs" and result["epochs"] == EPOCHS
    assert result["run_key"] == "whole" and result["variant"] == "han" and result["seed"] == 3
    assert result["kernels"].startswith("reference (the tensors are on the cpu")
    assert result["parameters"] == sum(array.size for array in load_file(run / "best.safetensors").values())
    rows = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == list(range(1, EPOCHS + 1))
    best = rows[result["best_epoch"] - 1]
    assert float(best["validation_accuracy"]) == pytest.approx(result["validation"]["accuracy"], rel=1e-5)
    assert float(best["validation_score"]) == max(float(row["validation_score"]) for row in rows)
    assert result["validation"]["accuracy"] > 0.8, "the classes of this data can be told apart"
    assert float(rows[-1]["training_loss"]) < float(rows[0]["training_loss"])
    assert json.loads((run / "job.json").read_text()) == json.loads(job.read_text())
    assert json.loads((run / "environment.json").read_text())["threads"] == 1
    assert json.loads((run / "timing.json").read_text())["samples"] == EPOCHS * 64
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        "started",
        *["epoch"] * EPOCHS,
        "finished",
    ]
    assert events[-1]["result"] == result
    assert all(event["variant"] == "han" and event["seed"] == 3 for event in events)
    assert len((run / "log.txt").read_text().splitlines()) == EPOCHS


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    train_here, write_job, image_directory, text_directory
):
    for data, model, optimizer in ((image_directory, "densenet", "sgd"), (text_directory, "gru_flat", "adamw")):
        settings = {
            "max_epochs": 2,
            "schedule": {"name": "cosine", "warmup_epochs": 0.5},
            "optimizer": {"name": optimizer},
        }
        jobs = [
            write_job(data, f"{model}-{n}", model, seed=seed, run_key=model, training=settings)
            for n, seed in enumerate((5, 5, 6))
        ]
        first, again, other = (train_here(job)["weights_sha256"] for job in jobs)
        assert first == again != other
        assert outcome(directory(jobs[0])) == outcome(directory(jobs[1]))


def test_strict_kernels_refuse_references_on_a_gpu_alone(train_here, write_job, text_directory, monkeypatch):
    job = write_job(text_directory, training={"max_epochs": 2, "strict_kernels": True})
    assert train_here(job)["kernels"].startswith("reference (the tensors are on the cpu")
    description = open_prepared(text_directory).description
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(library, "unfit", lambda device: "the library is not built: run `make ext`")
    with pytest.raises(InputError) as error:
        refuse_references(models.build("han", {}, description), gpu)
    assert str(error.value) == (
        "strict_kernels is true, and the kernels cannot run: the library is not built: run `make ext`, "
        "or set strict_kernels to false"
    )
    refuse_references(models.build("word_average", {}, description), gpu)
    monkeypatch.setattr(library, "unfit", lambda device: None)
    refuse_references(models.build("han", {}, description), gpu)


def test_a_kernel_that_strict_mode_refuses_is_bad_input(train_here, write_job, image_directory, monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    network = {"depth": 10, "growth_rate": 4, "activation": {"name": "swish"}}
    job = write_job(image_directory, model="densenet", network=network)
    with pytest.raises(InputError, match="swish has no kernel to run"):
        train_here(job)


def test_a_finished_run_returns_at_once_with_its_result(train_here, train_by_command, write_job, text_directory):
    job = write_job(text_directory, training={"max_epochs": 2})
    train_here(job)

    def files():
        paths = [path for path in directory(job).rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = files()
    code, event, errors = train_by_command(job, "--events")
    assert (code, errors) == (0, "") and event.count("\n") == 1
    assert json.loads(event)["event"] == "finished"
    assert before == files()


def test_two_processes_with_one_job_train_it_once(write_job, text_directory):
    job = write_job(text_directory, training={"max_epochs": 2})
    processes = [start(job, "--events") for _ in range(2)]
    outputs = [finish(process) for process in processes]
    assert [code for code, *_ in outputs] == [0, 0]
    assert sorted('"started"' in output for _, output, _ in outputs) == [False, True]


def test_a_loss_that_is_not_finite_stops_with_its_step_and_leaves_no_result(
    train_by_command, write_job, text_directory
):
    job = write_job(text_directory, training={"learning_rate": 100.0, "max_grad_norm": 0})
    content = json.loads(job.read_text())
    content["training"] |= {
        "optimizer": {"name": "sgd", "weight_decay": 10.0},
        "schedule": {"name": "cosine", "warmup_epochs": 0},
    }
    job.write_text(json.dumps(content))
    code, output, errors = train_by_command(job, "--events")
    assert code == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert "loss" in errors and "epoch" in errors and "lower learning_rate" in errors
    failed = json.loads(output.splitlines()[-1])
    assert failed["event"] == "failed" and failed["message"] in errors
    assert not (directory(job) / "result.json").exists()


@pytest.mark.parametrize("killed_at", ["history", "checkpoint"])
def test_a_run_killed_as_its_last_epoch_is_written_has_it_when_resumed(
    train_here, write_job, text_directory, monkeypatch, killed_at
):
    jobs = [
        write_job(text_directory, name, run_key="same", training={"max_epochs": 2, "patience": 2})
        for name in ("left", "killed")
    ]
    train_here(jobs[0])

    class Killed(Exception):
        pass

    def write(path, text):
        if text.count("\n") == 3:
            raise Killed
        write_text(path, text)

    def save(kept, state, announce):
        if state.epoch == 2:
            raise Killed
        saved(kept, state, announce)

    saved = Checkpoint.save
    with monkeypatch.context() as context:
        if killed_at == "history":
            context.setattr(checkpoint, "write_text", write)
        else:
            context.setattr(Checkpoint, "save", save)
        with pytest.raises(Killed):
            train_here(jobs[1])
    train_here(jobs[1])
    assert outcome(directory(jobs[0])) == outcome(directory(jobs[1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": {"hiden": 1}}, "'hiden'"),
        ({"prepared": "nowhere"}, "prepared.json is missing"),
        ({"network": {"word_vectors": "word2vec"}}, "is prepared without: set preprocessing."),
    ],
)
def test_bad_input_is_refused(train_here, write_job, text_directory, change, message):
    job = write_job(change.pop("prepared", text_directory), **change)
    with pytest.raises(InputError) as error:
        train_here(job)
    assert message in str(error.value)
    assert not (directory(job) / "result.json").exists()


def test_a_run_that_cannot_be_written_is_refused_in_one_line(train_here, write_job, text_directory, tmp_path):
    job = write_job(text_directory)
    (tmp_path / "file").touch()
    write_json(job, json.loads(job.read_text()) | {"run_directory": str(tmp_path / "file" / "run")})
    with pytest.raises(InputError, match=r"file/run, .* cannot be made \(Not a directory\)"):
        train_here(job)


def test_bad_input_is_one_line_and_exit_code_2(train_by_command, write_job, text_directory):
    job = write_job(text_directory, model="hann")
    code, output, errors = train_by_command(job)
    assert code == 2 and output == ""
    assert errors == f"error: {job}: unknown model 'hann': did you mean 'han'?\n"


def test_several_labels_are_scored_by_auroc(train_here, write_job, multi_label_directory):
    job = write_job(multi_label_directory, training={"max_epochs": 40, "patience": 40})
    validation = train_here(job)["validation"]
    assert validation["score"] > 0.75 and validation["score"] != validation["accuracy"]


def test_the_test_split_is_never_read(train_here, write_job, text_directory, tmp_path):
    """Rubbish in the rows of the test split changes no byte of what training writes."""
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    description = json.loads((text_directory / "prepared.json").read_text())
    start_of_test = description["splits"]["test"][0]
    counts = np.load(text_directory / "word_counts.npy")
    for name, about in description["arrays"].items():
        array = np.load(text_directory / about["file"])
        if name == "word_counts":
            # As many words as there are, all in one sentence: with another number no folder is opened.
            array[start_of_test:] = 0
            array[-1, -1] = counts[start_of_test:].sum()
        else:
            array[counts[:start_of_test].sum() if name == "tokens" else start_of_test :] = 10**6
        np.save(spoiled / about["file"], array)
        about["sha256"] = sha256_file(spoiled / about["file"])
    (spoiled / "prepared.json").write_text(json.dumps(description))
    jobs = [
        write_job(data, data.name, run_key="same", training={"max_epochs": 2}) for data in (text_directory, spoiled)
    ]
    for job in jobs:
        train_here(job)
    clean, other = (directory(job) for job in jobs)
    assert outcome(clean) == outcome(other)


def test_a_terminal_has_a_live_line_and_otherwise_one_line_per_epoch(train_by_command, write_job, text_directory):
    job = write_job(text_directory, "plain", training={"max_epochs": 2})
    lines = train_by_command(job)[1].splitlines()
    assert len(lines) == 3 and lines[0].startswith("han seed 3  epoch   1  loss ")
    job = write_job(text_directory, "live", training={"max_epochs": 2, "batch_size": 1})
    ours, theirs = pty.openpty()
    seen = []

    def listen():
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                seen.append(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    process = start(job, stdout=theirs, stderr=theirs)
    assert process.wait(timeout=60) == 0
    os.close(theirs)
    listener.join(timeout=10)
    os.close(ours)
    text = b"".join(seen).decode()
    assert "\r" in text and "samples/s" in text and "s left" in text and "\033[K" in text
