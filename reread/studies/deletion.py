"""The worth of attention weights: documents without the words that a network attends to most.

Trained networks with attention read documents again without the k words that they attended to most (a word's weight is
its own times its sentence's), without k random words, and without the k words of the largest gradient times input; and
the same with sentences. If the weights show what the decision rests on, the probability of the predicted class falls
further without attended words than without others. Serrano and Smith 2019, "Is Attention Interpretable?",
arXiv 1906.03731, doubt it; they remove attention weights in this way, not words.

A document is read as if the removed words had never been written: the others move up, and a sentence without words is
gone. A document is never empty: of k words or fewer all but the one of the least weight are removed, and likewise of
sentences. Documents are drawn from the validation split, so that the test split is not read; nothing is chosen on them.

Named before any network was read: the claim is about words at k = 10. It is judged by the rule of
reread/verdicts/rule.py, with documents as items and a margin of 0.02 of probability. Nothing else is judged.

Writes results.json, deletion.csv and figure.png.

Shape legend: M words of all documents.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

import models
from cuda_ext import library
from models.objectives import to_probabilities
from reread.batches import collation, inference
from reread.batches.answers import attends
from reread.batches.subsets import delete_tokens, segment_arange
from reread.evaluation.pictures import BLUE, GREY, INK, ORANGE, picture
from reread.storage.arrays import BoolArray, Float64Array, Int64Array
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.load_runs import TrainedNetworks, batches, draw_rows
from reread.verdicts.rule import PAIRS, Comparison
from reread.verdicts.statistics import mean_interval, paired_interval

EXPERIMENT = "default"
VARIANT = "han"
MARGIN = 0.02
ALPHA = 0.05
ATTENDED, RANDOM, GRADIENT = "attended", "random", "gradient × input"
COLOURS = {ATTENDED: BLUE, GRADIENT: ORANGE, RANDOM: GREY}


Count = Annotated[int, Range(1)]


@dataclass(frozen=True)
class Settings:
    """documents: drawn from ``split``; words, sentences: how many are removed; draws: of random removals."""

    split: Literal["train", "validation", "test"] = "validation"
    documents: Count = 1000
    words: tuple[Count, ...] = (1, 2, 5, 10, 20, 50)
    sentences: tuple[Count, ...] = (1, 2, 3, 5)
    primary_words: Count = 10
    draws: Count = 5

    def __post_init__(self) -> None:
        if self.primary_words not in self.words:
            raise InputError(f"primary_words is {self.primary_words}: choose one of words, {self.words}")


DEBUG = Settings(documents=12, words=(1, 2), sentences=(1,), primary_words=2, draws=2)


@torch.no_grad()
def attention(network: "models.Network", prepared: Prepared) -> tuple[Float64Array, Float64Array]:
    """Return a network's attention to every word, its weight times that of its sentence, float64 [M], and to every
    sentence, float64 [sentences of all documents]."""
    device = next(network.parameters()).device
    words = np.empty(len(prepared.arrays["tokens"]))
    word_counts = np.asarray(prepared.arrays["word_counts"])
    sentences = np.empty(word_counts.shape)
    for rows, places in batches(prepared):
        given = collation.inputs(prepared, rows, device)
        _, of_words, of_sentences = (part.double().cpu().numpy() for part in network.attend(*given))
        real = np.arange(of_words.shape[2]) < word_counts[rows, : of_words.shape[1], None]
        words[places] = (of_words * of_sentences[..., None])[real]
        sentences[rows, : of_sentences.shape[1]] = of_sentences
    return words, sentences[word_counts > 0]


def gradient_times_input(network: "models.Network", prepared: Prepared) -> Float64Array:
    """Return what every word adds to its document's highest logit, to first order, float64 [M].

    It is the word vector times the gradient with respect to it (Shrikumar et al. 2016, arXiv 1605.01713).
    """
    device = next(network.parameters()).device
    of_words, vectors = np.empty(len(prepared.arrays["tokens"])), []
    word_counts = np.asarray(prepared.arrays["word_counts"])
    hook = network.embedding.register_forward_hook(lambda module, given, out: vectors.append(out))
    try:
        for rows, places in batches(prepared):
            vectors.clear()
            logits = network(*collation.inputs(prepared, rows, device, ragged=True))
            (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), vectors)
            scores = (gradient * vectors[0]).sum(dim=-1).detach().double().cpu().numpy()
            if scores.ndim == 2:
                # The network has laid its words out in rows, one per sentence.
                scores = scores[np.arange(scores.shape[1]) < word_counts[rows].reshape(-1, 1)]
            of_words[places] = scores[: len(places)]
    finally:
        hook.remove()
    return of_words


def highest(scores: Float64Array, sizes: Int64Array, k: int) -> BoolArray:
    """Choose the k highest scores of each group, bool [M]: scores [M], groups of ``sizes`` one after the other.

    All but one of a group of k or fewer; the first of equal scores.
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores, group))
    chosen = np.empty(len(scores), bool)
    chosen[order] = segment_arange(sizes) < np.repeat(np.minimum(k, sizes - 1), sizes)
    return chosen


@dataclass(frozen=True)
class Removal:
    """The effect of one removal on one network.

    fall: of each document's probability, right: whether it is still classified correctly, float64 [documents] each
    (means over draws). removed: the mean share of a document's words that is removed.
    """

    fall: Float64Array
    right: Float64Array
    removed: float


class Reader:
    """One trained network and the documents that it reads, whole and without some of their words."""

    def __init__(self, network: "models.Network", prepared: Prepared) -> None:
        self.network = network
        self.prepared = prepared
        self.rows = np.arange(len(prepared.labels))
        self.labels = np.asarray(prepared.labels)
        before = self.probabilities(prepared)
        self.predicted = before.argmax(axis=1)
        self.before = before[self.rows, self.predicted]
        self.sizes = collation.sizes(prepared, self.rows)
        self.sentence_counts = np.asarray(prepared.arrays["sentence_counts"]).astype(np.int64)
        counts = np.asarray(prepared.arrays["word_counts"])
        self.sentence_lengths = counts[counts > 0]

    def probabilities(self, prepared: Prepared) -> Float64Array:
        """float64 [documents, K]."""
        scores = inference.predict(self.network, prepared, self.rows)
        return to_probabilities(self.network.objective, scores).astype(np.float64)

    def whole(self) -> Removal:
        return Removal(np.zeros(len(self.rows)), (self.predicted == self.labels).astype(np.float64), 0.0)

    def without_words(self, scores: list[Float64Array], k: int) -> Removal:
        """Without the k words of highest score, [M]; the mean over the sets of scores that are given."""
        return self._mean([self._without(highest(values, self.sizes, k)) for values in scores])

    def without_sentences(self, scores: list[Float64Array], k: int) -> Removal:
        """Without the k sentences of highest score, [sentences of all documents]."""
        chosen = [highest(values, self.sentence_counts, k) for values in scores]
        return self._mean([self._without(np.repeat(sentences, self.sentence_lengths)) for sentences in chosen])

    def _without(self, removed: BoolArray) -> Removal:
        after = self.probabilities(delete_tokens(self.prepared, removed))
        fall = self.before - after[self.rows, self.predicted]
        lost = np.add.reduceat(removed, self.prepared.first_words[:-1]) / self.sizes
        return Removal(fall, (after.argmax(axis=1) == self.labels).astype(np.float64), float(lost.mean()))

    @staticmethod
    def _mean(removals: list[Removal]) -> Removal:
        return Removal(
            np.mean([removal.fall for removal in removals], axis=0),
            np.mean([removal.right for removal in removals], axis=0),
            float(np.mean([removal.removed for removal in removals])),
        )


# By level, method and k.
Removals = dict[tuple[str, str, int], Removal]


def measured(settings: Settings, network: "models.Network", prepared: Prepared) -> Removals:
    """Measure one network; random removals are the same for every network."""
    reader = Reader(network, prepared)
    words, sentences = attention(network, prepared)
    generator = np.random.default_rng(1)
    of_words = {
        ATTENDED: [words],
        GRADIENT: [gradient_times_input(network, prepared)],
        RANDOM: [generator.random(len(words)) for _ in range(settings.draws)],
    }
    of_sentences = {ATTENDED: [sentences], RANDOM: [generator.random(len(sentences)) for _ in range(settings.draws)]}
    whole = reader.whole()
    removals = {("words", method, 0): whole for method in of_words}
    removals |= {("sentences", method, 0): whole for method in of_sentences}
    removals |= {
        ("words", method, k): reader.without_words(of_words[method], k) for method in of_words for k in settings.words
    }
    removals |= {
        ("sentences", method, k): reader.without_sentences(of_sentences[method], k)
        for method in of_sentences
        for k in settings.sentences
    }
    return removals


def judged(settings: Settings, by_seed: dict[int, Removals]) -> list[dict[str, Any]]:
    """Judge the claim: items are documents, scores the falls of their probabilities."""
    k = settings.primary_words
    comparison = Comparison(
        name="attended-random",
        claim=f"Without the {k} most attended words the probability falls further than without {k} random ones",
        source="Yang et al. 2016, section 2.2: not all words contribute equally to the meaning of a sentence",
        treatment=ATTENDED,
        control=RANDOM,
        metric="fall in probability",
    )
    attended, random = ([seed["words", method, k].fall for seed in by_seed.values()] for method in (ATTENDED, RANDOM))
    measured = study_io.measured_items(list(by_seed), attended, random, PAIRS)
    return study_io.judged([comparison], [measured], MARGIN, ALPHA)


def compared(by_seed: dict[int, Removals]) -> list[dict[str, Any]]:
    """Compare the fall without attended words (sentences) with the fall without as many of each other choice."""
    removals = next(iter(by_seed.values()))
    rows = []
    for level, method, k in removals:
        if method == ATTENDED or k == 0:
            continue
        differences = [
            float(seed[level, ATTENDED, k].fall.mean() - seed[level, method, k].fall.mean())
            for seed in by_seed.values()
        ]
        further = asdict(paired_interval(differences))
        rows.append({"level": level, "removed": k, "against": method, "falls_further_by": further})
    return rows


def table(by_seed: dict[int, Removals]) -> pd.DataFrame:
    rows = [
        (level, method, k, seed, removal.fall.mean(), removal.right.mean(), removal.removed, len(removal.fall))
        for seed, removals in by_seed.items()
        for (level, method, k), removal in removals.items()
    ]
    columns = ["level", "method", "removed", "seed", "fall", "accuracy", "share_of_words_removed", "documents"]
    return pd.DataFrame(rows, columns=columns)


def study(settings: Settings, source: TrainedNetworks, device: torch.device) -> study_io.Findings:
    """Remove, read and judge; InputError for a network that gives no attention."""
    part = draw_rows(source.prepared, settings.split, settings.documents)
    by_seed = {}
    with study_io.quiet_references(device):
        for seed, network in source.networks(device):
            if not attends(network):
                raise InputError(f"the network of seed {seed} gives no attention: give runs of a network that does")
            by_seed[seed] = measured(settings, network, part)
    results = {
        "settings": asdict(settings),
        "kernels": library.kernels(device),
        "data": source.data,
        "documents": len(part.labels),
        **study_io.rule(MARGIN, ALPHA),
        "claims": judged(settings, by_seed),
        "compared": compared(by_seed),
    }
    return study_io.Findings(results, {"deletion": table(by_seed)})


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from deletion.csv."""
    rows = pd.read_csv(folder / "deletion.csv")
    with picture(path, 10, 6) as figure:
        grid = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, level in enumerate(("words", "sentences")):
            of_level = rows[rows["level"] == level]
            panel(grid[0, column], of_level, "fall")
            panel(grid[1, column], of_level, "accuracy")
            grid[0, column].set_title(f"{level} removed")
            grid[1, column].set_xlabel(f"{level} removed from each document")
        grid[0, 0].set_ylabel("fall of the probability\nof the class predicted before")
        grid[1, 0].set_ylabel("accuracy")
        grid[0, 0].legend()


def panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Mean over seeds with its interval, by how many are removed, evenly spaced."""
    counts = sorted(set(rows["removed"]))
    for method, colour in COLOURS.items():
        of_method = rows[rows["method"] == method]
        if of_method.empty:
            continue
        spans = [mean_interval(of_method[of_method["removed"] == k][column].to_list()) for k in counts]
        study_io.shade(axes, range(len(counts)), spans, colour)
        axes.plot(range(len(counts)), [span.mean for span in spans], "o-", color=colour, markersize=4, label=method)
    if column == "fall":
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(counts)), [str(k) for k in counts])
