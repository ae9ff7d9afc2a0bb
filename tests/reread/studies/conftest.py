"""One torch thread, as the commands have, so that sums come in one order; a small prepared text, and networks trained
on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from reread.commands.app import main
from reread.storage.files import write_json
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.run_folder import RunFolder
from reread.studies.load_runs import TrainedNetworks, trained_networks
from reread.studies.movie_plots import PHRASE
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.golden.data import write_prepared
from tests.reads import every_test_split

DOCUMENTS, SENTENCES, WORDS, CLASSES = 90, 5, 8, 3
# Of training, validation and test.
ENDS = (48, 69, 90)
VOCABULARY = ["<pad>", "<unk>", *PHRASE, ".", ",", *(f"w{number}" for number in range(20))]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rows_of_test() -> Iterator[None]:
    """Test rows without an entry in the ledger."""
    with every_test_split():
        yield


@pytest.fixture(scope="session")
def text_directory(tmp_path_factory) -> Path:
    """90 documents of 1 to 5 sentences of 1 to 8 words, of 3 classes, half of whose words are the class's own."""
    directory, generator = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    labels = (np.arange(DOCUMENTS) % CLASSES).astype(np.int32)
    sentence_counts = generator.integers(1, SENTENCES + 1, DOCUMENTS).astype(np.int32)
    # The longest document and the longest sentence stand in the training split.
    sentence_counts[0] = SENTENCES
    word_counts = generator.integers(1, WORDS + 1, (DOCUMENTS, SENTENCES)).astype(np.int32)
    word_counts[0] = WORDS
    word_counts[np.arange(SENTENCES) >= sentence_counts[:, None]] = 0
    of_words = np.repeat(labels, word_counts.sum(axis=1))
    own = generator.random(len(of_words)) < 0.5
    tokens = np.where(
        own, 10 + 5 * of_words + generator.integers(0, 5, len(own)), generator.integers(1, len(VOCABULARY), len(own))
    ).astype(np.int32)
    arrays = {"tokens": tokens, "word_counts": word_counts, "sentence_counts": sentence_counts, "labels": labels}
    kept = {"words": WORDS, "sentences": SENTENCES}
    more = {
        "name": "small",
        "kind": "text",
        "task": "single-label",
        "vocabulary_size": len(VOCABULARY),
        "lengths": {level: {"quantile": 1.0, "kept": most, "longest": most} for level, most in kept.items()},
    }
    write_prepared(directory, arrays, more, ENDS)
    write_json(directory / "vocabulary.json", VOCABULARY)
    return directory


@pytest.fixture(scope="session")
def prepared(text_directory) -> Prepared:
    return open_prepared(text_directory)


@pytest.fixture(scope="session")
def source(text_directory, tmp_path_factory) -> TrainedNetworks:
    """Two seeds of a hierarchical attention network, trained on it for three epochs."""
    folder = tmp_path_factory.mktemp("runs")
    return trained_networks([trained(folder / str(seed), text_directory, "han", seed) for seed in range(2)])


@pytest.fixture(scope="session")
def flat_run(text_directory, tmp_path_factory) -> RunFolder:
    """A flat network, which attends to nothing."""
    return trained(tmp_path_factory.mktemp("flat") / "0", text_directory, "gru_flat", 0)


@pytest.fixture
def study(capsys) -> Callable[..., str]:
    """``reread study`` in this process: takes its arguments and the exit code, returns what it prints."""

    def call(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["study", *map(str, arguments)])
        printed = capsys.readouterr()
        assert stopped.value.code == code, printed.err
        if code:
            assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
        return printed.err if code else printed.out

    return call


def trained(directory: Path, prepared: Path, model: str, seed: int) -> RunFolder:
    given = {
        "run_key": directory.name,
        "variant": model,
        "model": model,
        "seed": seed,
        "network": {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.0},
        "training": {
            "max_epochs": 3,
            "schedule": {"name": "cosine", "warmup_epochs": 0},
            "batch_size": 8,
            "learning_rate": 0.03,
        },
        "prepared": str(prepared),
        "run_directory": str(directory),
    }
    write_json(directory.with_suffix(".json"), given)
    job = TrainingJob.read(directory.with_suffix(".json"))
    run(job, given, Progress(job, events=None))
    return RunFolder(directory)
