"""What attention weights are worth: ``python -m studies.deletion --runs RUN ... --prepared FOLDER``.

Trained networks with attention read documents again without the k words that they attended to most (a word's weight is
its own times its sentence's), without k words drawn by chance, and without the k whose gradient times input is the
largest; and the same with sentences. If the weights say what the decision rests on, the probability of the class that
was predicted falls further without attended words than without others. Whether it does has been doubted: Serrano and
Smith 2019, "Is Attention Interpretable?", arXiv 1906.03731, remove attention weights (not words) in that way.

A document is read without its words as if they had never been written: the others move up, and a sentence that has lost
all of its words is gone. It never gets empty: of a document with k words or fewer all but one are removed, the one with
the least weight staying, and the same holds of sentences. Documents are drawn from the validation split, so that the
test split is left alone; nothing is chosen on them.

Named before any network was read: the claim is about words at k = 10, judged by the rule of evaluation/verdicts.py,
items being documents and the smallest effect 0.02 of probability. All else is measured and not judged.

Writes results.json, deletion.csv and figure.png.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from batches import collation, inference
from batches.answers import attends
from batches.subsets import delete_tokens, segment_arange
from cuda_ext import library
from evaluation.bootstrap import mean_of, two_way_of
from evaluation.pictures import BLUE, GREY, INK, ORANGE, picture
from evaluation.statistics import mean_interval, paired_interval
from evaluation.verdicts import RULE, Comparison, Measured, judge
from models.objectives import to_probabilities
from storage.errors import InputError, command
from storage.prepared import Prepared
from studies import evidence, trained

NAME = "deletion"
SMALLEST_EFFECT = 0.02
ALPHA = 0.05
ATTENDED, RANDOM, GRADIENT = "attended", "random", "gradient × input"
COLOURS = {ATTENDED: BLUE, GRADIENT: ORANGE, RANDOM: GREY}


@dataclass(frozen=True)
class Plan:
    """documents: drawn from ``split``; words, sentences: how many are removed; draws: of those removed by chance."""

    split: str = "validation"
    documents: int = 1000
    words: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    sentences: tuple[int, ...] = (1, 2, 3, 5)
    primary_words: int = 10
    draws: int = 5


DEBUG = Plan(documents=12, words=(1, 2), sentences=(1,), primary_words=2, draws=2)


def highest(scores: np.ndarray, sizes: np.ndarray, k: int) -> np.ndarray:
    """Which k of each group have the highest scores, bool [M]: scores [M], groups of ``sizes`` one after the other.

    All but one of a group of k or fewer; of equal scores the first.
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores, group))
    chosen = np.empty(len(scores), bool)
    chosen[order] = segment_arange(sizes) < np.repeat(np.minimum(k, sizes - 1), sizes)
    return chosen


@dataclass(frozen=True)
class Fallen:
    """Of one network, level, method and k: the fall of each document's probability and whether it is still classified
    right, float64 [documents] each (means over draws), and the mean share of its words that a document loses."""

    fall: np.ndarray
    right: np.ndarray
    removed: float


class Reader:
    """One trained network and the documents that it reads, whole and without some of their words."""

    def __init__(self, network: nn.Module, prepared: Prepared) -> None:
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

    def probabilities(self, prepared: Prepared) -> np.ndarray:
        """float64 [documents, K]."""
        scores = inference.predict(self.network, prepared, self.rows)
        return to_probabilities(self.network.objective, scores).astype(np.float64)

    def whole(self) -> Fallen:
        return Fallen(np.zeros(len(self.rows)), (self.predicted == self.labels).astype(np.float64), 0.0)

    def without_words(self, scores: list[np.ndarray], k: int) -> Fallen:
        """Without the k words of highest score, [M]; the mean over the sets of scores that are given."""
        return self._mean([self._without(highest(one, self.sizes, k)) for one in scores])

    def without_sentences(self, scores: list[np.ndarray], k: int) -> Fallen:
        """Without the k sentences of highest score, [sentences of all documents]."""
        chosen = [highest(one, self.sentence_counts, k) for one in scores]
        return self._mean([self._without(np.repeat(one, self.sentence_lengths)) for one in chosen])

    def _without(self, removed: np.ndarray) -> Fallen:
        after = self.probabilities(delete_tokens(self.prepared, removed))
        fall = self.before - after[self.rows, self.predicted]
        lost = np.add.reduceat(removed, self.prepared.first_words[:-1]) / self.sizes
        return Fallen(fall, (after.argmax(axis=1) == self.labels).astype(np.float64), float(lost.mean()))

    @staticmethod
    def _mean(found: list[Fallen]) -> Fallen:
        return Fallen(
            np.mean([one.fall for one in found], axis=0),
            np.mean([one.right for one in found], axis=0),
            float(np.mean([one.removed for one in found])),
        )


# By level, method and k.
Cells = dict[tuple[str, str, int], Fallen]


def measured(plan: Plan, network: nn.Module, prepared: Prepared) -> Cells:
    """All that is measured of one network; what is removed by chance is the same for every network."""
    reader = Reader(network, prepared)
    words, sentences = trained.attention(network, prepared)
    generator = np.random.default_rng(1)
    of_words = {
        ATTENDED: [words],
        GRADIENT: [trained.gradient_times_input(network, prepared)],
        RANDOM: [generator.random(len(words)) for _ in range(plan.draws)],
    }
    of_sentences = {ATTENDED: [sentences], RANDOM: [generator.random(len(sentences)) for _ in range(plan.draws)]}
    whole = reader.whole()
    found = {("words", method, 0): whole for method in of_words}
    found |= {("sentences", method, 0): whole for method in of_sentences}
    found |= {("words", one, k): reader.without_words(of_words[one], k) for one in of_words for k in plan.words}
    found |= {
        ("sentences", one, k): reader.without_sentences(of_sentences[one], k)
        for one in of_sentences
        for k in plan.sentences
    }
    return found


def judged(plan: Plan, found: dict[int, Cells]) -> list[dict[str, Any]]:
    """The claim, by the rule of evaluation.verdicts: items are documents, scores the falls of their probabilities."""
    pair = Comparison(
        name="attended-random",
        claim=f"Without the {plan.primary_words} most attended words the probability falls further than without "
        f"{plan.primary_words} random ones",
        source="Yang et al. 2016, section 2.2: not all words contribute equally to the meaning of a sentence",
        treatment=ATTENDED,
        control=RANDOM,
        metric="fall in probability",
    )
    falls = [
        [seed["words", method, plan.primary_words].fall for method in (ATTENDED, RANDOM)] for seed in found.values()
    ]
    both = two_way_of([(mean_of(one), mean_of(other)) for one, other in falls], len(falls[0][0]))
    differences = [float(one.mean() - other.mean()) for one, other in falls]
    (verdict,) = judge([pair], [Measured(list(found), differences, both)], SMALLEST_EFFECT, ALPHA)
    return [{"claim": pair.claim, "verdict": verdict.verdict, "says": verdict.sentence, "measured": verdict.as_dict()}]


def compared(found: dict[int, Cells]) -> list[dict[str, Any]]:
    """How much further the probability falls without what was attended to than without each other choice of as much."""
    cells = next(iter(found.values()))
    rows = []
    for level, method, k in cells:
        if method == ATTENDED or k == 0:
            continue
        differences = [
            float(seed[level, ATTENDED, k].fall.mean() - seed[level, method, k].fall.mean()) for seed in found.values()
        ]
        further = evidence.interval(paired_interval(differences))
        rows.append({"level": level, "removed": k, "against": method, "falls_further_by": further})
    return rows


def table(found: dict[int, Cells]) -> pd.DataFrame:
    rows = [
        (level, method, k, seed, one.fall.mean(), one.right.mean(), one.removed, len(one.fall))
        for seed, cells in found.items()
        for (level, method, k), one in cells.items()
    ]
    columns = ["level", "method", "removed", "seed", "fall", "accuracy", "share_of_words_removed", "documents"]
    return pd.DataFrame(rows, columns=columns)


def study(plan: Plan, runs: list[Path], prepared: Prepared, place: Path, device: torch.device) -> dict[str, Any]:
    """Remove, read, judge and write the evidence to ``place``; returns results.json's content."""
    networks = trained.networks(runs, prepared)
    for seed, network in networks.items():
        if not attends(network):
            raise InputError(f"the network of seed {seed} gives no attention: give runs of a network that does")
    part = trained.drawn_rows(prepared, plan.split, plan.documents)
    found = {}
    with evidence.kernels_where_there_are(device):
        for seed, network in networks.items():
            found[seed] = measured(plan, network.to(device), part)
            network.cpu()
            print(f"seed {seed}: read", flush=True)
    results = {
        "plan": dataclasses.asdict(plan),
        "computed_on": evidence.computed_on(device) | {"kernels": library.kernels(device)},
        "data": prepared.description["name"],
        "documents": len(part.labels),
        "rule": RULE,
        "smallest_effect": SMALLEST_EFFECT,
        "claims": judged(plan, found),
        "compared": compared(found),
    }
    evidence.publish(place, results, {"deletion": table(found)}, draw_figure)
    return results


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from deletion.csv."""
    found = pd.read_csv(folder / "deletion.csv")
    with picture(path, 10, 6) as figure:
        grid = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, level in enumerate(("words", "sentences")):
            mine = found[found["level"] == level]
            panel(grid[0, column], mine, "fall")
            panel(grid[1, column], mine, "accuracy")
            grid[0, column].set_title(f"{level} removed")
            grid[1, column].set_xlabel(f"{level} removed from each document")
        grid[0, 0].set_ylabel("fall of the probability\nof the class predicted before")
        grid[1, 0].set_ylabel("accuracy")
        grid[0, 0].legend()


def panel(axes: Axes, found: pd.DataFrame, column: str) -> None:
    """Mean over seeds with its interval, by how many are removed, evenly spaced."""
    counts = sorted(set(found["removed"]))
    for method, colour in COLOURS.items():
        mine = found[found["method"] == method]
        if mine.empty:
            continue
        spans = [mean_interval(mine[mine["removed"] == k][column].to_list()) for k in counts]
        if spans[-1].low is not None:
            low, high = [one.low for one in spans], [one.high for one in spans]
            axes.fill_between(range(len(counts)), low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(range(len(counts)), [one.mean for one in spans], "o-", color=colour, markersize=4, label=method)
    if column == "fall":
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(counts)), [str(k) for k in counts])


def main() -> None:
    trained.command_line(
        NAME, "What attention weights are worth: documents without attended words.", Plan(), DEBUG, study
    )


if __name__ == "__main__":
    command(main)()
