"""The gates of trained networks.

Asks hierarchical attention networks (models/han.py) that were trained on texts what the post "Understanding GRUs"
(December 2018) says of a GRU's gates:

    "If r_t is close to zero, then we “forget” all the previous information in the h_{t-1} vector, and just use the
    current word information."
    "Units with short term memories usually have reset gate very activate (i.e. numbers close to 1), and thus forget
    most about the past…"
    "An example where the reset gate is useful is sentiment analysis on a movie review, where the author spend many
    sentences describing and summarizing the movie plot, but conclude that “But the movie is really boring”. With this
    sentence, all the previous information become useless. This reset gate can help the model “forget” the previous
    summaries."

The first two contradict each other: if a reset gate near 0 made a unit forget, units of short memory would have it
near 0. (Cho et al. 2014, arXiv 1406.1078, section 2.3, says the second, and that units of long memory have an active
update gate.) A unit's memory is measured without reading a gate, by the derivative of its state with respect to its
own earlier states. It is correlated over units (Spearman) with the unit's mean reset gate, in each direction; the mean
of both directions is one number per network. What a reset gate of 0 forgets is also measured directly: it is set to 0
in every unit for one step.

The example is read with plots of reread/studies/movie_plots.py before the phrase: in one sentence, where the GRU over
words has the plot in its state when it reads 'but', and as the last of several sentences, where the GRU over sentences
has it. The usual gate is the mean over the words of the same plot from the fourth on (sentences: from the second on).

The claims were named before any network was read, and are judged together by the rule of reread/verdicts/rule.py,
with Holm's correction over all four and a margin of 0.05:

    forgets         0.1 minus the old state's share after a step with every reset gate at 0; over seeds alone
    short-near-0    the correlation of the GRU over words, over seeds alone, with a margin of 0.1
    short-near-1    its negative, likewise
    usual-but       the usual reset gate minus that at 'but', over seeds and texts

Writes results.json, units.csv, histograms.csv, trace.csv, phrase.csv and figure.png.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from scipy.stats import spearmanr

from cuda_ext import library
from models.han import HierarchicalAttentionNetwork
from reread.evaluation.pictures import BLUE, GREY, INK, ORANGE, picture
from reread.storage.arrays import Float64Array
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import Prepared
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.gate_measures import (
    BINS,
    CLOSED,
    GATES,
    LEVELS,
    distribution,
    drawn_sequences,
    layer_of,
    memory,
    old_share_without_reset,
    readable,
    recurrences,
    trace,
)
from reread.studies.load_runs import TrainedNetworks, draw_rows
from reread.studies.movie_plots import PHRASE, PLOTS, in_one_sentence, in_sentences
from reread.verdicts.rule import PAIRS, Comparison
from reread.verdicts.statistics import Interval, mean_interval, paired_interval

EXPERIMENT = "imdb"
VARIANT = "han"
ALPHA = 0.05
MARGIN = 0.05
CORRELATION_MARGIN = 0.1
# The old state's share below which all of it counts as forgotten.
FORGOTTEN = 0.1
# Words and sentences of a plot that are not counted as usual: the state is still nearly zero there.
SKIPPED = {"words": 3, "sentences": 1}
FORGETS = (
    "If r_t is close to zero, then we “forget” all the previous information in the h_{t-1} vector, and just use the "
    "current word information."
)
SHORT = (
    "Units with short term memories usually have reset gate very activate (i.e. numbers close to 1), and thus forget "
    "most about the past…"
)
EXAMPLE = (
    "With this sentence, all the previous information become useless. This reset gate can help the model “forget” the "
    "previous summaries."
)
COLOURS = {"reset": BLUE, "update": ORANGE}


Count = Annotated[int, Range(1)]


@dataclass(frozen=True)
class Settings:
    """documents: read from ``split``; sequences: drawn for each level, of so many steps, in which a unit's memory is
    counted so many steps back."""

    split: Literal["train", "validation", "test"] = "validation"
    documents: Count = 2500
    sequences: Count = 64
    steps_of_words: Count = 25
    back_of_words: Count = 20
    steps_of_sentences: Count = 12
    back_of_sentences: Count = 8

    def steps(self, level: str) -> int:
        return {"words": self.steps_of_words, "sentences": self.steps_of_sentences}[level]

    def back(self, level: str) -> int:
        return {"words": self.back_of_words, "sentences": self.back_of_sentences}[level]


DEBUG = Settings(
    documents=12,
    sequences=3,
    steps_of_words=4,
    back_of_words=2,
    steps_of_sentences=3,
    back_of_sentences=2,
)


@dataclass(frozen=True)
class Found:
    """The measurements of one network.

    units: level, direction, unit, reset, update, memory, time_constant. histograms: level, gate, low, share. trace:
    level, text, place, word, the gates' means and closed shares. at_words: see gate_measures.Distribution. old_share:
    of gate_measures.old_share_without_reset, by level.
    """

    units: pd.DataFrame
    histograms: pd.DataFrame
    trace: pd.DataFrame
    at_words: dict[str, Float64Array]
    old_share: dict[str, float]

    def correlation(self, level: str, gate: str, with_: str) -> float:
        """Spearman's over units of one direction, the mean of both directions."""
        units = self.units[self.units["level"] == level]
        return float(np.mean([spearmanr(half[gate], half[with_]).statistic for _, half in units.groupby("direction")]))


def refuse_short(settings: Settings, prepared: Prepared) -> None:
    """Raise InputError where no sentence or no text has as many steps as the settings ask."""
    longest = {level: int(np.max(prepared.arrays[f"{level[:-1]}_counts"])) for level in LEVELS}
    short = [level for level in LEVELS if longest[level] < settings.steps(level)]
    if not short:
        return
    names = {"words": "sentence", "sentences": "text"}
    says = " and ".join(
        f"the longest {names[level]} has {longest[level]} of {settings.steps(level)} {level}" for level in short
    )
    options = [f"--option steps_of_{level}={longest[level]}" for level in short]
    options += [
        f"--option back_of_{level}={max(longest[level] - 1, 1)}"
        for level in short
        if settings.back(level) >= longest[level]
    ]
    raise InputError(f"{prepared.directory}, {settings.split} split: {says}: give {' '.join(options)}")


def measured(
    settings: Settings, network: HierarchicalAttentionNetwork, prepared: Prepared, index: dict[str, int]
) -> Found:
    """Measure one network; a sentence and a text are as long as the settings ask (``refuse_short``)."""
    read = distribution(network, prepared, [index.get(word, -1) for word in PHRASE])
    units, histograms, old_share = [], [], {}
    for level in LEVELS:
        means = {gate: read.of[level, gate].means for gate in GATES}
        sequences = drawn_sequences(network, prepared, level, settings.sequences, settings.steps(level))
        shares = []
        for direction, layer in zip(("forwards", "backwards"), recurrences(layer_of(network, level)), strict=True):
            as_read = sequences if direction == "forwards" else sequences.flip(1)
            half = slice(0, layer.units) if direction == "forwards" else slice(layer.units, None)
            units.append(
                pd.DataFrame(
                    {
                        "level": level,
                        "direction": direction,
                        "unit": np.arange(layer.units),
                        "reset": means["reset"][half],
                        "update": means["update"][half],
                        "memory": memory(layer, as_read, settings.back(level)),
                        "time_constant": -1 / np.log(means["update"][half]),
                    }
                )
            )
            shares.append(old_share_without_reset(layer, as_read))
        old_share[level] = float(np.mean(shares))
        for gate in GATES:
            low = np.arange(BINS) / BINS
            share = read.of[level, gate].shares
            histograms.append(pd.DataFrame({"level": level, "gate": gate, "low": low, "share": share}))
    return Found(
        pd.concat(units, ignore_index=True),
        pd.concat(histograms, ignore_index=True),
        example(network, index),
        read.at_words,
        old_share,
    )


def example(network: HierarchicalAttentionNetwork, index: dict[str, int]) -> pd.DataFrame:
    """The gates over the post's example, both readings of each plot."""
    rows = []
    together = [in_one_sentence(plot) for plot in PLOTS]
    of_words = trace(network, [[words] for words, _ in together], index)
    of_sentences = trace(network, [in_sentences(plot) for plot in PLOTS], index)
    for text, ((words, begins), joined, apart) in enumerate(zip(together, of_words, of_sentences, strict=True)):
        for level, names, start, columns in (
            ("words", words, begins, joined["words"]),
            ("sentences", [" ".join(s) for s in in_sentences(PLOTS[text])], len(PLOTS[text]), apart["sentences"]),
        ):
            for place, name in enumerate(names):
                values = {column: float(value[place]) for column, value in columns.items()}
                rows.append(
                    {"level": level, "text": text, "place": place, "of_phrase": place - start, "word": name} | values
                )
    return pd.DataFrame(rows)


def usual(rows: pd.DataFrame, level: str, gate: str) -> pd.Series:
    """The mean of a gate over each text's plot, by text."""
    of_plots = rows[(rows["level"] == level) & (rows["of_phrase"] < 0) & (rows["place"] >= SKIPPED[level])]
    return of_plots.groupby("text")[gate].mean()


def at_phrase(rows: pd.DataFrame, level: str, gate: str, place: int) -> pd.Series:
    """A gate at one place of the phrase, by text."""
    return rows[(rows["level"] == level) & (rows["of_phrase"] == place)].set_index("text")[gate]


def correlations(by_seed: dict[int, Found], level: str, gate: str, with_: str) -> list[float]:
    """The correlation of each seed."""
    return [of_seed.correlation(level, gate, with_) for of_seed in by_seed.values()]


def judged(by_seed: dict[int, Found]) -> list[dict[str, Any]]:
    """The four claims, judged together."""
    seeds = list(by_seed)
    shares = [of_seed.old_share["words"] for of_seed in by_seed.values()]
    of_reset = correlations(by_seed, "words", "reset", "memory")
    of_update = correlations(by_seed, "words", "update", "memory")
    usually = [usual(of_seed.trace, "words", "reset").to_numpy() for of_seed in by_seed.values()]
    at_but = [at_phrase(of_seed.trace, "words", "reset", 0).to_numpy() for of_seed in by_seed.values()]
    old, span = mean_interval(shares), mean_interval(of_reset)
    correlation = f"Mean reset gate and memory: Spearman's over units {shown(span)} over {span.n} seeds."
    claims = [
        (
            Comparison(
                name="forgets",
                claim="A reset gate of 0 forgets all of the state",
                source=FORGETS,
                treatment=f"share of {FORGOTTEN:g}",
                control="old state after a reset gate of 0",
                metric="share of the state",
            ),
            study_io.measured_seeds(seeds, [FORGOTTEN - share for share in shares]),
            f"After a step with every reset gate at 0, {old.mean:.0%}{between(old, '.0%')} of the state is the old "
            "one's: the candidate sees the word alone, and the update gate keeps what it keeps.",
        ),
        (
            Comparison(
                name="short-near-0",
                claim="Units of short memory have their reset gate nearer to 0",
                source=FORGETS,
                treatment="reset gate with memory",
                control="no correlation",
                metric="Spearman's correlation",
                equivalence_margin=CORRELATION_MARGIN,
            ),
            study_io.measured_seeds(seeds, of_reset),
            correlation,
        ),
        (
            Comparison(
                name="short-near-1",
                claim="Units of short memory have their reset gate nearer to 1",
                source=SHORT,
                treatment="no correlation",
                control="reset gate with memory",
                metric="Spearman's correlation",
                equivalence_margin=CORRELATION_MARGIN,
            ),
            study_io.measured_seeds(seeds, [-value for value in of_reset]),
            f"{correlation} For the update gate it is {shown(mean_interval(of_update))}.",
        ),
        (
            Comparison(
                name="usual-but",
                claim="The reset gate is lower at 'but' than over the plot before it",
                source=EXAMPLE,
                treatment="usual",
                control="at 'but'",
                metric="mean reset gate",
            ),
            study_io.measured_items(seeds, usually, at_but, PAIRS),
            said_of_example(by_seed, usually, at_but),
        ),
    ]
    comparisons, measurements, says = zip(*claims, strict=True)
    named = {comparison.name: text for comparison, text in zip(comparisons, says, strict=True)}
    return study_io.judged(comparisons, measurements, MARGIN, ALPHA, named)


def said_of_example(by_seed: dict[int, Found], usually: list[Float64Array], at_but: list[Float64Array]) -> str:
    """Return a sentence: how far the reset gate falls at 'but', and what falls furthest in the phrase."""
    fall = paired_interval([float(now.mean() - before.mean()) for before, now in zip(usually, at_but, strict=True)])
    table = phrase_table(by_seed)
    words = table[table["level"] == "words"].pivot_table(index=["word", "gate"], columns="seed", values="above_usual")
    word, gate = words.mean(axis=1).idxmin()
    lowest = mean_interval(words.loc[(word, gate)].to_list())
    return (
        f"At 'but' it is {shown(fall, '+.3f')} from what it is over the plot, over {fall.n} seeds and {len(PLOTS)} "
        f"texts. What closes furthest in the phrase is the {gate} gate at '{word}', {shown(lowest, '+.3f')}."
    )


def shown(span: Interval, form: str = "+.2f") -> str:
    return f"{span.mean:{form}}{between(span, form)}"


def between(span: Interval, form: str) -> str:
    return "" if span.low is None else f" [{span.low:{form}}, {span.high:{form}}]"


def phrase_table(by_seed: dict[int, Found]) -> pd.DataFrame:
    """By seed, how far each gate is above what is usual, at each word of the phrase and at the phrase as a sentence."""
    rows = []
    for seed, of_seed in by_seed.items():
        for level, names in (("words", PHRASE), ("sentences", (" ".join(PHRASE),))):
            for place, name in enumerate(names):
                for gate in GATES:
                    before, now = (
                        usual(of_seed.trace, level, gate).mean(),
                        at_phrase(of_seed.trace, level, gate, place).mean(),
                    )
                    rows.append((level, name, gate, seed, before, now, now - before))
    return pd.DataFrame(rows, columns=["level", "word", "gate", "seed", "usual", "here", "above_usual"])


def over_seeds(by_seed: dict[int, Found]) -> dict[str, Any]:
    """Return the values beside the claims, each with its interval over seeds."""
    table = phrase_table(by_seed)
    units = {seed: of_seed.units for seed, of_seed in by_seed.items()}

    def spread(level: str, gate: str) -> dict[str, Any]:
        means = [table[table["level"] == level][gate] for table in units.values()]
        quantiles = {"lowest": 0, "first_decile": 0.1, "median": 0.5, "last_decile": 0.9, "highest": 1}
        named = {
            name: asdict(mean_interval([float(of_seed.quantile(q)) for of_seed in means]))
            for name, q in quantiles.items()
        }
        return {"mean": asdict(mean_interval([float(of_seed.mean()) for of_seed in means])), "units": named}

    in_validation = {}
    for gate in GATES:
        away = np.stack([of_seed.at_words[gate][1:] - of_seed.at_words[gate][0] for of_seed in by_seed.values()])
        in_validation[gate] = {
            word: asdict(mean_interval(column.tolist()))
            for word, column in zip(PHRASE, away.T, strict=True)
            if np.isfinite(column).all()
        }
    return {
        "gates": {level: {gate: spread(level, gate) for gate in GATES} for level in LEVELS},
        "correlations": {
            level: {
                f"{gate} with {with_}": asdict(mean_interval(correlations(by_seed, level, gate, with_)))
                for gate, with_ in (("reset", "memory"), ("update", "memory"), ("reset", "time_constant"))
            }
            for level in LEVELS
        },
        "old_share_after_a_reset_of_0": {
            level: asdict(mean_interval([of_seed.old_share[level] for of_seed in by_seed.values()])) for level in LEVELS
        },
        "above_usual_in_the_example": {
            level: {
                word: {
                    gate: asdict(mean_interval(of_word[of_word["gate"] == gate]["above_usual"].to_list()))
                    for gate in GATES
                }
                for word, of_word in table[table["level"] == level].groupby("word", sort=False)
            }
            for level in LEVELS
        },
        "above_the_mean_of_all_words_in_the_documents": in_validation,
    }


def study(settings: Settings, source: TrainedNetworks, device: torch.device) -> study_io.Findings:
    """Read the gates of every network and judge the claims; InputError for networks without two levels of GRUs."""
    index = {word: number for number, word in enumerate(read_json(source.prepared.directory / "vocabulary.json"))}
    part = draw_rows(source.prepared, settings.split, settings.documents)
    refuse_short(settings, part)
    by_seed = {}
    with study_io.quiet_references(device):
        for seed, network in source.networks(device):
            if not readable(network):
                raise InputError(f"the network of seed {seed} is no hierarchical GRU: give runs of a han")
            by_seed[seed] = measured(settings, network, part, index)
    words = {word for plot in PLOTS for sentence in plot for word in sentence}
    results = {
        "settings": asdict(settings),
        "kernels": library.kernels(device),
        "data": source.data,
        "documents": len(part.labels),
        "seeds": list(by_seed),
        **study_io.rule(MARGIN, ALPHA),
        "forgotten_below": FORGOTTEN,
        "closed_below": CLOSED,
        "unknown_words_of_the_example": sorted((words | set(PHRASE)) - set(index)),
        "claims": judged(by_seed),
        "over_seeds": over_seeds(by_seed),
    }
    tables = {
        name: pd.concat(
            [getattr(of_seed, name).assign(seed=seed) for seed, of_seed in by_seed.items()], ignore_index=True
        )
        for name in ("units", "histograms", "trace")
    }
    return study_io.Findings(results, tables | {"phrase": phrase_table(by_seed)})


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from the tables."""
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in ("units", "histograms", "trace", "phrase")}
    with picture(path, 11, 6.6) as figure:
        grid = figure.add_gridspec(2, 3)
        first = figure.add_subplot(grid[0, 0])
        histogram_panel(first, tables["histograms"], "words")
        histogram_panel(figure.add_subplot(grid[0, 1], sharey=first), tables["histograms"], "sentences")
        first.set_ylabel("share of steps and units per bin")
        first.legend()
        unit_panel(figure.add_subplot(grid[0, 2]), tables["units"])
        trace_panel(figure.add_subplot(grid[1, :2]), tables["trace"])
        phrase_panel(figure.add_subplot(grid[1, 2]), tables["phrase"])


def histogram_panel(axes: Axes, rows: pd.DataFrame, level: str) -> None:
    """The distribution of each gate: each seed thin, their mean thick."""
    for gate, colour in COLOURS.items():
        wide = rows[(rows["level"] == level) & (rows["gate"] == gate)].pivot(
            index="low", columns="seed", values="share"
        )
        middle = wide.index + 0.5 / len(wide)
        axes.plot(middle, wide.to_numpy(), color=colour, linewidth=0.6, alpha=0.35)
        axes.plot(middle, wide.mean(axis=1), color=colour, linewidth=2, label=f"{gate} gate")
    axes.set(xlabel="gate", xlim=(0, 1), title=f"GRU over {level}")
    axes.set_ylim(bottom=0)


def unit_panel(axes: Axes, rows: pd.DataFrame) -> None:
    """Each unit of the GRU over words: its memory and its mean gates."""
    of_words = rows[rows["level"] == "words"]
    for gate, colour in COLOURS.items():
        axes.plot(of_words["memory"], of_words[gate], "o", color=colour, markersize=2.5, alpha=0.5, markeredgewidth=0)
    axes.set(ylim=(0, 1), xlabel="memory of a unit (steps)", ylabel="its mean gate", title="units, GRU over words")
    axes.set_xlim(left=0)


def trace_panel(axes: Axes, rows: pd.DataFrame) -> None:
    """The gates over the first plot and the phrase, mean over units; the interval over seeds."""
    of_text = rows[(rows["level"] == "words") & (rows["text"] == 0)]
    words = of_text[of_text["seed"] == of_text["seed"].iloc[0]]
    for gate, colour in COLOURS.items():
        spans = [mean_interval(of_place[gate].to_list()) for _, of_place in of_text.groupby("place")]
        study_io.shade(axes, words["place"], spans, colour)
        axes.plot(words["place"], [span.mean for span in spans], "o-", color=colour, markersize=3, linewidth=1.2)
    phrase = words[words["of_phrase"].between(0, len(PHRASE) - 1)]["place"]
    axes.axvspan(phrase.min() - 0.5, phrase.max() + 0.5, color="#EEF1F5", linewidth=0)
    axes.set_xticks(words["place"], words["word"], rotation=90, fontsize=7)
    axes.set_xlim(-0.6, len(words) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="mean gate of the units\nthat read forwards", title="the post's example, one of the texts")


def phrase_panel(axes: Axes, rows: pd.DataFrame) -> None:
    """How far each gate is from what is usual at each word of the phrase, and at the phrase as a sentence."""
    names = list(dict.fromkeys(rows["word"]))
    for (gate, colour), shift in zip(COLOURS.items(), (0.15, -0.15), strict=True):
        for place, name in enumerate(names):
            values = rows[(rows["word"] == name) & (rows["gate"] == gate)]["above_usual"].to_list()
            span = mean_interval(values)
            height = len(names) - 1 - place + shift
            if span.low is not None and span.high is not None:
                axes.plot([span.low, span.high], [height] * 2, color=colour, linewidth=2.5, solid_capstyle="butt")
            axes.plot(values, [height] * len(values), "o", color=GREY, markersize=2, alpha=0.6, markeredgewidth=0)
            axes.plot([span.mean], [height], "D", color="white", markeredgecolor=colour, markersize=4.5)
    axes.axvline(0, color=INK, linewidth=0.8)
    shown = [name if rows[rows["word"] == name]["level"].iloc[0] == "words" else "the sentence" for name in names]
    axes.set_yticks(range(len(names)), shown[::-1])
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="gate minus what is usual", title="at the phrase, all texts")
