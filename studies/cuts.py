"""Texts cut at quantiles of their lengths, and networks trained on them: what studies/quantiles.py measures.

A part is one training: a cut, a learning rate, a seed. Each is kept when it is done, under a key of its settings, its
source, its data and the kind of machine, so that a study that was stopped goes on, and a second process that is started
beside the first takes up other parts.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from batches import collation, inference
from batches.subsets import select_rows, truncate
from planning.validation import read
from preprocessing.lengths import LengthHistogram
from storage.errors import InputError
from storage.files import content_key, published_directory, read_json, write_json
from storage.prepared import SPLITS, Prepared
from storage.source import source_digests
from studies.evidence import kernels_where_there_are, make_once
from studies.padding import Steps, Timer
from studies.trained import open_text
from training.loop import train
from training.progress import Progress
from training.settings import Job, Settings

FIRST_TUNING_SEED = 1000
KEPT = Path(".cache", "studies", "quantiles")


@dataclass(frozen=True, order=True)
class Cut:
    """The quantiles of the training split's sentence lengths (words) and document lengths (sentences)."""

    words: float
    sentences: float


@dataclass(frozen=True)
class Plan:
    """quantiles: the same for words and sentences; alone: also each of them with the other at ``beside``.

    rates are tried with every tuning seed on validation, for each cut; network and training are what every training
    has. timed: batches whose steps are timed. rows: of each split at most, None for all.
    """

    quantiles: tuple[float, ...] = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
    alone: bool = False
    beside: float = 0.95
    seeds: int = 8
    rates: tuple[float, ...] = (0.001, 0.002, 0.004)
    tuning_seeds: int = 1
    network: Mapping[str, Any] = field(
        default_factory=lambda: {"embedding_dim": 200, "hidden_size": 50, "dropout": 0.5}
    )
    training: Mapping[str, Any] = field(default_factory=lambda: {"max_epochs": 15, "patience": 3})
    timed: int = 30
    rows: int | None = None

    @property
    def settings(self) -> Settings:
        return read(Settings, self.training, "--training")

    @property
    def cuts(self) -> list[Cut]:
        """Both together, in rising order, then each alone."""
        together = [Cut(one, one) for one in self.quantiles]
        if not self.alone:
            return together
        alone = [Cut(one, self.beside) for one in self.quantiles] + [Cut(self.beside, one) for one in self.quantiles]
        return [*together, *(one for one in alone if one not in together)]


DEBUG = Plan(
    quantiles=(0.5, 1.0),
    seeds=2,
    rates=(0.01, 0.02),
    network={"embedding_dim": 8, "hidden_size": 4, "dropout": 0.5},
    training={"max_epochs": 2, "schedule": {"name": "cosine", "warmup_epochs": 0}, "batch_size": 8},
    timed=2,
    rows=24,
)


class Corpus:
    """One data set, prepared whole (at quantiles of 1), and its cuts."""

    def __init__(self, directory: Path, rows: int | None = None) -> None:
        whole = open_text(directory)
        lengths = whole.description["lengths"]
        short = [level for level in ("words", "sentences") if lengths[level]["kept"] < lengths[level]["longest"]]
        if short:
            raise InputError(
                f"{directory} is cut already ({short[0]} at {lengths[short[0]]['kept']} of "
                f"{lengths[short[0]]['longest']}): prepare it with length_quantile {{words: 1.0, sentences: 1.0}}"
            )
        if rows is not None:
            whole = select_rows(whole, np.concatenate([whole.rows(split)[:rows] for split in SPLITS]))
        self.whole = whole
        self.name: str = whole.description["name"]
        self.digest = {name: about["sha256"] for name, about in whole.description["arrays"].items()}
        self._last: tuple[Cut, Prepared] | None = None
        train = whole.rows("train")
        word_counts = np.asarray(whole.arrays["word_counts"])[train]
        self.words = LengthHistogram.of(word_counts[word_counts > 0])
        self.sentences = LengthHistogram.of(np.asarray(whole.arrays["sentence_counts"])[train])

    def kept(self, quantiles: Cut) -> tuple[int, int]:
        """Sentences of a document and words of a sentence that are kept, as preprocessing/lengths.py has quantiles."""
        return self.sentences.quantile(quantiles.sentences), self.words.quantile(quantiles.words)

    def cut(self, quantiles: Cut) -> Prepared:
        """The data set cut there; the last one is remembered."""
        if self._last is None or self._last[0] != quantiles:
            sentences, words = self.kept(quantiles)
            self._last = quantiles, truncate(self.whole, words, sentences)
        return self._last[1]

    def shares(self, quantiles: Cut) -> dict[str, float]:
        """Of each split the share of its words that is kept, and of its documents that are whole."""
        found = {}
        for split in SPLITS:
            rows = self.whole.rows(split)
            before = collation.sizes(self.whole, rows)
            after = collation.sizes(self.cut(quantiles), rows)
            found[f"{split}_words_kept"] = float(after.sum() / before.sum())
            found[f"{split}_documents_whole"] = float((after == before).mean())
        return found


@dataclass(frozen=True)
class Run:
    """One training. A run of tuning does not read the test split."""

    cut: Cut
    rate: float
    seed: int

    @property
    def tunes(self) -> bool:
        return self.seed >= FIRST_TUNING_SEED


@dataclass(frozen=True)
class Trained:
    """What a run came to: accuracy on validation, and whether each test document is right, bool [m], or None."""

    validation: float
    epochs: int
    best_epoch: int
    test: np.ndarray | None


class Trainer:
    """Trains runs on one corpus, and finds again what is kept."""

    def __init__(self, plan: Plan, corpus: Corpus, device: torch.device, machine: dict[str, str], kept: Path) -> None:
        self.plan = plan
        self.corpus = corpus
        self.device = device
        self.kept = kept
        source = source_digests(["studies.cuts", "models.han"])
        self.known = {"data": corpus.digest, "rows": plan.rows, "machine": machine, "source": source}

    def place(self, run: Run) -> Path:
        own = {"network": dict(self.plan.network), "training": dict(self.plan.training)}
        return self.kept / content_key({**self.known, **own, "run": dataclasses.asdict(run)})

    def place_of_steps(self, quantiles: Cut) -> Path:
        own = {"network": dict(self.plan.network), "training": dict(self.plan.training), "timed": self.plan.timed}
        return self.kept / content_key({**self.known, **own, "steps": dataclasses.asdict(quantiles)})

    def all(self, runs: Sequence[Run]) -> list[Trained]:
        """Every run: kept ones are read, the others made and kept, those last that another process makes."""
        make_once({run: self.place(run) for run in runs}, self.make)
        return [self.read(run) for run in runs]

    def make(self, run: Run, place: Path) -> None:
        prepared = self.corpus.cut(run.cut)
        training = Settings(**{**vars(self.plan.settings), "learning_rate": run.rate})
        directory = tempfile.TemporaryDirectory(dir=self.kept, prefix=".run.")
        with directory as folder, kernels_where_there_are(self.device):
            name = f"{self.corpus.name} q {run.cut.words:g}, {run.cut.sentences:g} rate {run.rate:g}"
            job = Job(place.name, name, "han", run.seed, self.plan.network, training, Path(), Path(folder))
            _, state = train(job, prepared, self.device, Progress(job, events=False))
            found: dict[str, Any] = {
                "validation": state.best_validation()["accuracy"],
                "epochs": state.epoch,
                "best_epoch": state.best_epoch,
            }
            test = None if run.tunes else self.right(Path(folder), prepared)
        with published_directory(place) as folder:
            write_json(folder / "run.json", found)
            if test is not None:
                np.save(folder / "test.npy", test, allow_pickle=False)

    def right(self, folder: Path, prepared: Prepared) -> np.ndarray:
        """Whether the best weights are right on each test document, bool [m]."""
        write_json(folder / "job.json", {"model": "han", "network": dict(self.plan.network)})
        network = models.load(folder, prepared.description).to(self.device)
        rows = prepared.rows("test")
        return inference.predict(network, prepared, rows).argmax(axis=1) == np.asarray(prepared.labels[rows])

    def read(self, run: Run) -> Trained:
        place = self.place(run)
        test = None if run.tunes else np.load(place / "test.npy", allow_pickle=False)
        return Trained(**read_json(place / "run.json"), test=test)

    def steps(self, quantiles: Cut) -> list[Steps]:
        """The time of steps at a cut, kept as runs are. Nothing else should run on the device meanwhile."""
        place = self.place_of_steps(quantiles)
        make_once({quantiles: place}, self.make_steps)
        return [Steps(**one) for one in read_json(place / "steps.json")]

    def make_steps(self, quantiles: Cut, place: Path) -> None:
        timer = Timer(
            self.corpus.cut(quantiles),
            self.corpus.kept(quantiles),
            dict(self.plan.network),
            self.plan.settings,
            self.device,
            self.plan.timed,
        )
        with kernels_where_there_are(self.device):
            found = timer.all_ways()
        with published_directory(place) as folder:
            write_json(folder / "steps.json", [dataclasses.asdict(one) for one in found])

    def tuned(self) -> tuple[dict[Cut, float], list[tuple[Run, Trained]]]:
        """Each cut's learning rate, by validation accuracy on tuning seeds, and the trials."""
        if len(self.plan.rates) == 1:
            return dict.fromkeys(self.plan.cuts, self.plan.rates[0]), []
        runs = list(self.trials())
        trials = list(zip(runs, self.all(runs), strict=True))
        rates = {}
        for one in self.plan.cuts:
            means = {
                rate: np.mean([done.validation for run, done in trials if (run.cut, run.rate) == (one, rate)])
                for rate in sorted(self.plan.rates)
            }
            rates[one] = max(means, key=means.__getitem__)
        return rates, trials

    def trials(self) -> Iterator[Run]:
        # The longest first, so that processes end at about the same time.
        for one in reversed(self.plan.cuts):
            for rate in self.plan.rates:
                for seed in range(self.plan.tuning_seeds):
                    yield Run(one, rate, FIRST_TUNING_SEED + seed)

    def tested(self, rates: Mapping[Cut, float]) -> list[tuple[Run, Trained]]:
        """Every seed at every cut."""
        runs = [Run(one, rates[one], seed) for one in reversed(self.plan.cuts) for seed in range(self.plan.seeds)]
        return list(zip(runs, self.all(runs), strict=True))
