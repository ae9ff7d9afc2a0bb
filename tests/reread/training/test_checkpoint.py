"""The state of an optimiser in a checkpoint; a writer in the background writes what one at once does."""

import dataclasses
import json
import threading

import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from models import word_average
from reread.storage.digests import DIGESTS, refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.run_folder import CHECKPOINT, CHECKPOINTS, HISTORY, WEIGHTS
from reread.training import checkpoint
from reread.training.average import Average
from reread.training.checkpoint import Checkpoint, Writer, checkpoints
from reread.training.optimisers import REGISTRY, make_optimiser
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import Settings, TrainingJob
from reread.training.state import COLUMNS, State
from reread.training.validation import Validation
from tests.reread.training.outcome import outcome


class Counting(torch.optim.Optimizer):
    """Counts its steps in plain numbers, by parameter and by group."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter.sub_(parameter.grad, alpha=group["lr"] / state["steps"] / group["steps"])


def steps(network, optimiser, count):
    for _ in range(count):
        for parameter in network.parameters():
            parameter.grad = torch.sin(parameter.detach()) + 1
        optimiser.step()


def made(make, directory, writer=None, build=lambda: nn.Linear(3, 2)):
    torch.manual_seed(0)
    network = build()
    optimiser = make(network)
    return (
        network,
        optimiser,
        Checkpoint(
            directory, network, Average(network, 0), optimiser, torch.amp.GradScaler("cpu"), writer=writer or Writer()
        ),
    )


def end_epoch(state, score=0.5):
    state.record(dict.fromkeys(COLUMNS, 0.0), Validation(1.0, score, score))


def by_name(name):
    return lambda network: make_optimiser(network, Settings(optimizer={"name": name}))


MAKERS = {name: by_name(name) for name in REGISTRY.available()}
MAKERS |= {"counting": lambda network: Counting(network.parameters(), {"lr": 0.1})}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_resumed_optimiser_continues_as_one_that_was_not_stopped(make, tmp_path):
    whole, optimiser, _ = made(make, tmp_path)
    steps(whole, optimiser, 5)
    first, optimiser, kept = made(make, tmp_path)
    steps(first, optimiser, 2)
    state = State()
    end_epoch(state)
    kept.save(state)
    second, optimiser, kept = made(make, tmp_path)
    assert kept.resume().epoch == 1
    steps(second, optimiser, 3)
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.bias, whole.bias)
    assert not torch.equal(second.weight, first.weight)


def test_resumed_buffers_have_the_strides_of_their_parameters(tmp_path):
    def convolution():
        return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    network, optimiser, kept = made(by_name("sgd"), tmp_path, build=convolution)
    steps(network, optimiser, 2)
    momentum = optimiser.state[network.weight]["momentum_buffer"]
    state = State()
    end_epoch(state)
    kept.save(state)
    network, optimiser, kept = made(by_name("sgd"), tmp_path, build=convolution)
    kept.resume()
    resumed = optimiser.state[network.weight]["momentum_buffer"]
    assert torch.equal(resumed, momentum)
    assert resumed.stride() == network.weight.stride() != (27, 9, 3, 1)


def test_a_resumed_run_has_its_average_and_the_scale_of_its_gradients(tmp_path):
    def made_with(scale):
        network = nn.BatchNorm1d(2)
        optimiser = MAKERS["sgd"](network)
        average, scaler = Average(network, 0.9), torch.amp.GradScaler("cpu", init_scale=scale)
        return network, average, scaler, Checkpoint(tmp_path, network, average, optimiser, scaler)

    network, average, _, kept = made_with(8.0)
    with torch.no_grad():
        network.weight.fill_(3.0)
    average.update(0)
    state = State()
    end_epoch(state)
    kept.save(state)
    resumed, same, scaler, kept = made_with(2.0)
    kept.resume()
    assert torch.equal(resumed.weight, network.weight)
    assert torch.equal(same.network.weight, average.network.weight)
    assert not torch.equal(same.network.weight, network.weight)
    assert scaler.get_scale() == 8.0


def test_of_several_processes_one_alone_mends_and_warns_on_resuming(tmp_path, capsys):
    saved_epochs(tmp_path, (0.1, 0.2))
    flip(checkpoints(tmp_path)[-1] / CHECKPOINT, 0.7)
    (tmp_path / HISTORY).unlink()
    left = tmp_path / CHECKPOINTS / ".000003.killed"
    left.mkdir()
    for writes in (False, True):
        kept = dataclasses.replace(made(MAKERS["adamw"], tmp_path)[2], writes=writes)
        assert kept.resume().epoch == 1
        assert (tmp_path / HISTORY).exists() == (not left.exists()) == bool(capsys.readouterr().err) == writes


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until this event is set."""
    opened = threading.Event()

    def write(path, text):
        assert opened.wait(60)
        write_text(path, text)

    write_text = checkpoint.write_text
    monkeypatch.setattr(checkpoint, "write_text", write)
    yield opened
    opened.set()


def bytes_of(folder):
    files = [folder / HISTORY, *sorted(folder.glob("checkpoints/*/*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_writer_in_the_background_writes_what_was_there_when_it_was_asked_to(gate, tmp_path):
    folders = [tmp_path / "at-once", tmp_path / "background"]
    for folder, background in zip(folders, (False, True), strict=True):
        folder.mkdir()
        gate.clear() if background else gate.set()
        writer = Writer(background)
        network, optimiser, kept = made(MAKERS["adamw"], folder, writer)
        state = State()
        with writer.finishing():
            for score in (0.1, 0.2):
                steps(network, optimiser, 1)
                end_epoch(state, score)
                kept.save(state)
                assert not background or score == 0.2 or not list(folder.iterdir())
                # The second save waits for the first write.
                threading.Timer(0.2, gate.set).start()
            end_epoch(state)
            steps(network, optimiser, 1)
            with torch.no_grad():
                network.weight.zero_()
    assert bytes_of(folders[0]) == bytes_of(folders[1])
    assert made(MAKERS["adamw"], folders[1])[2].resume().epoch == 2


def test_an_epoch_is_announced_when_its_files_are_there_and_before_the_next_is_written(tmp_path):
    writer = Writer(background=True)
    network, optimiser, kept = made(MAKERS["adamw"], tmp_path, writer)
    state, announced = State(), []
    with writer.finishing():
        for epoch in range(1, 5):
            steps(network, optimiser, 1)
            end_epoch(state)
            kept.save(state, lambda: announced.append(len((tmp_path / HISTORY).read_text().splitlines()) - 1))
            assert len(announced) >= epoch - 1
    assert announced == [1, 2, 3, 4]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", [HISTORY, CHECKPOINTS])
def test_a_file_that_cannot_be_written_is_refused_where_training_runs(background, name, tmp_path):
    (tmp_path / HISTORY).mkdir() if name == HISTORY else (tmp_path / CHECKPOINTS).touch()
    writer = Writer(background)
    network, optimiser, kept = made(MAKERS["adamw"], tmp_path, writer)
    state, announced = State(), []
    steps(network, optimiser, 1)
    end_epoch(state)

    def train():
        with writer.finishing():
            kept.save(state, lambda: announced.append(1))
            assert background, "without a thread the error is raised at once"

    with pytest.raises(InputError, match=f"checkpoint.*{tmp_path.name}.*cannot be written"):
        train()
    assert not announced


def test_an_error_of_training_is_raised_when_the_last_write_is_done(gate, tmp_path):
    writer = Writer(background=True)
    network, optimiser, kept = made(MAKERS["adamw"], tmp_path, writer)
    steps(network, optimiser, 1)
    state = State()
    end_epoch(state)

    def train():
        with writer.finishing():
            kept.save(state)
            threading.Timer(0.2, gate.set).start()
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        train()
    assert made(MAKERS["adamw"], tmp_path)[2].resume().epoch == 1


def saved_epochs(directory, scores):
    """Epochs with these validation scores, each saved with other weights; the state and what they are made of."""
    network, optimiser, kept = made(MAKERS["adamw"], directory)
    state = State()
    for score in scores:
        steps(network, optimiser, 1)
        end_epoch(state, score)
        kept.save(state)
    return network


def test_two_checkpoints_are_kept_and_each_has_the_best_weights_of_its_time(tmp_path):
    saved_epochs(tmp_path, (0.5, 0.1, 0.2, 0.9, 0.3))
    assert [folder.name for folder in checkpoints(tmp_path)] == ["000004", "000005"]
    fourth, fifth = checkpoints(tmp_path)
    assert (fourth / WEIGHTS).samefile(fifth / WEIGHTS), "weights that stay the best are linked"
    saved_epochs(tmp_path / "first", (0.5, 0.1))
    first, second = checkpoints(tmp_path / "first")
    assert load_file(second / WEIGHTS).keys() == {"weight", "bias"}
    assert (first / WEIGHTS).read_bytes() == (second / WEIGHTS).read_bytes() != (fourth / WEIGHTS).read_bytes()


@pytest.mark.parametrize("damaged", [CHECKPOINT, WEIGHTS, DIGESTS])
def test_training_resumes_from_the_newest_checkpoint_that_is_whole(damaged, tmp_path, capsys):
    network = saved_epochs(tmp_path, (0.1, 0.2, 0.3))
    flip(checkpoints(tmp_path)[-1] / damaged, 0.7)
    other, _, kept = made(MAKERS["adamw"], tmp_path)
    state = kept.resume()
    assert state.epoch == 2 and not torch.equal(other.weight, network.weight)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "000003" in said and "resumes after epoch 2" in said
    assert len((tmp_path / HISTORY).read_text().splitlines()) == 3, "the history is that of the checkpoint"
    # A damaged checkpoint is replaced, and those that training left behind are removed.
    end_epoch(state)
    kept.save(state)
    flip(checkpoints(tmp_path)[0] / damaged, 0.7)
    assert made(MAKERS["adamw"], tmp_path)[2].resume().epoch == 3
    assert capsys.readouterr().err == ""


def test_without_a_whole_checkpoint_training_starts_from_the_beginning(tmp_path, capsys):
    saved_epochs(tmp_path, (0.3, 0.2, 0.1))
    for folder in checkpoints(tmp_path):
        (folder / CHECKPOINT).write_bytes(b"")
    (tmp_path / CHECKPOINTS / ".000004.killed").mkdir()
    network, _, kept = made(MAKERS["adamw"], tmp_path)
    before = network.weight.clone()
    state = kept.resume()
    assert state.epoch == 0 and torch.equal(network.weight, before)
    assert "starts from the beginning" in capsys.readouterr().err
    end_epoch(state)
    kept.save(state)
    assert [folder.name for folder in (tmp_path / CHECKPOINTS).iterdir()] == ["000001"]


def test_weights_that_were_damaged_since_are_not_linked_as_whole(tmp_path):
    *_, kept = made(MAKERS["adamw"], tmp_path)
    state = State()
    end_epoch(state, 0.9)
    kept.save(state)
    flip(checkpoints(tmp_path)[0] / WEIGHTS, 0.9)
    end_epoch(state, 0.1)
    kept.save(state)
    with pytest.raises(InputError, match=r"best\.safetensors is damaged"):
        refuse_damaged_folder(checkpoints(tmp_path)[-1])
    assert made(MAKERS["adamw"], tmp_path)[2].resume().epoch == 0


def flip(path, share, bit=3):
    """Flip one bit of the byte at ``share`` of a file."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1 << bit
    path.write_bytes(content)


class Stops(Progress):
    """Is interrupted after the checkpoint of the second epoch."""

    def epoch(self, row, batches):
        super().epoch(row, batches)
        if row["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_network_with_tied_weights_trains_and_resumes_with_the_same_bytes(
    train_here, write_job, text_directory, monkeypatch, ema_decay
):
    """One weight under two names, as the embedding and the output of a language model are."""
    plain = word_average.build

    def tied(settings, description):
        network = plain(settings, description)
        network.embedding.again = nn.Linear(1, 1, bias=False)
        network.embedding.again.weight = network.embedding.weight
        return network

    monkeypatch.setattr(word_average, "build", tied)
    settings = {"max_epochs": 4, "patience": 4, "ema_decay": ema_decay}
    jobs = [
        write_job(text_directory, key, "word_average", run_key="tied", training=settings)
        for key in ("whole", "resumed")
    ]
    whole = train_here(jobs[0])
    job = TrainingJob.read(jobs[1])
    with pytest.raises(KeyboardInterrupt):
        run(job, json.loads(jobs[1].read_text()), Stops(job, None))
    assert [folder.name for folder in checkpoints(job.run_directory)] == ["000001", "000002"]
    assert outcome(train_here(jobs[1])) == outcome(whole)
    weights = load_file(whole / WEIGHTS)
    assert (weights["embedding.weight"] == weights["embedding.again.weight"]).all()
