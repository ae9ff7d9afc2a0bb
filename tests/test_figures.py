"""The figures in the pages' tables are those of the committed evidence, rounded as the page rounds them.

A page is written by hand and its evidence by a command, so that a study which is run again leaves the page behind. Each
row is found by its first cell: a row that is new on a page, or one that is gone from it, fails until it is named here.
"""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# A figure as the pages write it: the minus is U+2212, and a nought before the point may be left out.
FIGURE = re.compile(r"[+−]?(?:\d[\d,]*)?\.?\d+")

ACCURACY = ("", "IMDB, 25,000 reviews", "without 123 that stand in both splits", "20 Newsgroups, 7,309 posts")
CLAIMS = ("claim", "IMDB: verdict, difference over seeds and reviews", "20 Newsgroups")
CUTS = (
    "quantile of words and sentences",
    "IMDB: words kept",
    "test accuracy",
    "20 Newsgroups: words kept",
    "test accuracy",
)
TRIALS = ("changed", "difference")
DEFAULT = ("claim", "verdict", "difference in test accuracy, over seeds and over seeds and items")
COPYING = ("the post says or asks", "GRU against", "verdict", "difference in symbols recalled, over seeds")
TABLES = {"README.md": [DEFAULT], "docs/readers.md": [ACCURACY, CLAIMS, TRIALS, CUTS], "docs/gru.md": [COPYING]}
# Tables that are not of results/: measurements of speed, and what each folder is for.
OTHER_TABLES = {"README.md": [("network", "batch", "a second", "best peer", "times"), ("folder", "what is there")]}

# The rows, and what the evidence calls them.
READERS = {
    "HAN": "han",
    "mean for attention (HN-AVE)": "han-ave",
    "maximum (HN-MAX)": "han-max",
    "random vectors": "han-random",
    "plain recurrent networks": "han-rnn",
    "no reset gate": "han-no-reset",
    "no update gate": "han-no-update",
    "one gate for both": "han-minimal",
    "ReLU in the candidate": "han-gru-relu",
    "flat GRU": "gru-flat",
    "flat GRU with attention": "gru-flat-attention",
    "mean of word vectors": "word-average",
    "NB-SVM": "nb-svm",
    "TF-IDF": "tf-idf",
}
CLAIMS_OF_READERS = {
    "HAN beats the flat GRU": "hierarchy",
    "... also with attention": "hierarchy-attention",
    "... NB-SVM": "nb-svm",
    "... TF-IDF": "tf-idf",
    "... the mean of word vectors": "word-average",
    "GRUs beat plain recurrent networks": "gru-or-rnn",
    "attention beats the mean": "attention",
    "the mean beats the maximum": "average",
    "word2vec beats random vectors": "word-vectors",
    "the reset gate is of use": "reset-gate",
    "the update gate is": "update-gate",
    "two gates are better than one": "two-gates",
    "tanh is better than ReLU": "tanh-or-relu",
}
CLAIMS_OF_THE_DEFAULT = {
    "A hierarchical attention network reads documents better than a flat GRU (Yang et al. 2016)": "hierarchy",
    "Swish in place of ReLU raises a DenseNet's accuracy (Ramachandran et al. 2017)": "swish",
    "A trainable beta raises it further": "swish-beta",
}
# With what stands beside it on the page: the name of the other network, and what is taken from it.
CLAIMS_OF_COPYING = {
    "the plain network cannot remember, a gated one can": "`rnn`",
    "the update gate is what keeps the old state": "`no-update`, z = 0",
    "why a reset gate at all?": "`no-reset`, r = 1",
    "(and why not one gate for both?)": "`minimal`, after Zhou et al. 2016",
    'tanh "just performs better" than ReLU': "`gru-relu`",
}
# For each figure of a row, in their order, the settings that were changed; one figure may stand for several.
SIX, TEN = "maximum_epochs=6 warmup_epochs=0.5", "maximum_epochs=10 warmup_epochs=0.5"
SETTINGS_TRIED = {
    "word vectors at 0.05 of the learning rate, 10 epochs, learning rate .005": [
        [f"word_vector_rate=0.05 {TEN} learning_rate=0.005"]
    ],
    "... 0.02 of .01, 10 epochs; 0.1 of .002, 15 epochs": [
        [f"word_vector_rate=0.02 {TEN} learning_rate=0.01"],
        ["word_vector_rate=0.1"],
    ],
    "... 0.05 of .01, 6 epochs; with 100 units in place of 50": [
        [f"word_vector_rate=0.05 {SIX} learning_rate=0.01"],
        [f"word_vector_rate=0.05 hidden=100 {SIX} learning_rate=0.01"],
    ],
    "... 0.1 of .005, 6 epochs; without adversarial words": [
        [f"word_vector_rate=0.1 {SIX} learning_rate=0.005"],
        [f"word_vector_rate=0.1 {SIX} learning_rate=0.005 adversarial=0.0"],
    ],
    "... not trained at all, 15 epochs": [["word_vector_rate=0.0"]],
    "100 units in place of 50; begun as a language model of the training texts": [
        ["hidden=100"],
        ["pretrained=language model hidden=100"],
    ],
    "50 units, begun as a language model": [["pretrained=language model"]],
    "dropout .5; of inputs .5; of sentences .3; of recurrent weights .3": [
        ["dropout=0.5"],
        ["input_dropout=0.5"],
        ["sentence_dropout=0.3"],
        ["recurrent_dropout=0.3"],
    ],
    "dropout of words .2; of word types .2": [["word_dropout=0.2"], ["type_dropout=0.2"]],
    "adversarial norm 3; 5 on normalised vectors": [["adversarial=3.0"], ["normalised=True adversarial=5.0"]],
    "no label smoothing; weight decay 1": [["label_smoothing=0.0"], ["weight_decay=1.0"]],
    "words seen under 15 times unknown; word2vec of 15 epochs, 10 words to each side": [
        ["minimum_count=15"],
        ["word2vec=15 epochs, window 10"],
    ],
    "4 or 6 epochs; half or a quarter of the rate; batches of 128": [
        ["maximum_epochs=4 warmup_epochs=0.3"],
        ["maximum_epochs=6 warmup_epochs=0.5"],
        ["learning_rate=0.001", "learning_rate=0.0005"],
        ["batch_size=128"],
    ],
}


def tables(page: str) -> dict[tuple[str, ...], list[list[str]]]:
    """The rows of each table of a page, by its header."""
    found = {}
    for block in re.findall(r"(?:^\|.*(?:\n|\Z))+", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = (
            [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
            for line in block.splitlines()
        )
        assert tuple(header) not in found, f"{page} has two tables of {header}"
        found[tuple(header)] = rows
    return found


def rows_of(page: str, header: tuple[str, ...], names: dict[str, object]) -> list[list[str]]:
    """The rows of a table, which must be those of ``names``, each once."""
    rows = tables(page)[header]
    assert [first for first, *_ in rows] == list(names), f"{page}: the rows are not those that are compared here"
    return rows


def evidence(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def by_name(verdicts: dict) -> dict[str, dict]:
    return {verdict["name"]: verdict for verdict in verdicts["verdicts"]}


def span(interval: dict[str, float]) -> list[float]:
    return [interval[key] for key in ("mean", "low", "high")]


def check(cell: str, expected: str, values: list[float]) -> None:
    """Hold a cell against its evidence: ``expected`` is the cell with # for each figure, or ± where it has its sign."""
    shape = FIGURE.sub(lambda found: "±" if found[0][0] in "+−" else "#", cell)
    assert shape == expected, f"{cell!r} should be written as {expected!r}"
    for written, value in zip(FIGURE.findall(cell), values, strict=True):
        number = float(written.replace("−", "-").replace(",", ""))
        decimals = len(written.partition(".")[2])
        close = abs(number - value) <= 0.5 * 10**-decimals + 1e-9
        assert close and math.copysign(1, number) == math.copysign(1, value), f"{cell!r}: {written} is {value}"


def verdict_in_words(verdict: dict, leaning: str) -> str:
    """The page's words: bold where a claim is decided, and ``leaning`` where the whole interval speaks against it."""
    if verdict["verdict"] in ("holds", "fails"):
        return f"**{verdict['verdict']}**"
    against = verdict["verdict"] == "inconclusive" and verdict["over_seeds_and_items"]["high"] < 0
    return verdict["verdict"] + leaning * against


@pytest.mark.parametrize("page", TABLES)
def test_every_table_of_a_page_is_compared_or_is_of_something_else(page):
    assert set(tables(page)) == {*TABLES[page], *OTHER_TABLES.get(page, [])}


def test_the_readers_accuracies_are_those_of_their_runs():
    metrics = {name: evidence(f"{name}/metrics.json") for name in ("imdb", "newsgroups20")}
    again = metrics["imdb"]["without_repeated"]["imdb"]
    items = {name: by_name(evidence(f"{name}/verdicts.json"))["hierarchy"] for name in metrics}
    for title, name in ((ACCURACY[1], "imdb"), (ACCURACY[3], "newsgroups20")):
        counted = re.search(r"and (\d+) items", items[name]["over_seeds_and_items"]["method"])[1]
        assert f"{int(counted):,}" in title
    assert f"without {again['rows_left_out']} that" in ACCURACY[2]

    rows = rows_of("docs/readers.md", ACCURACY, READERS)
    known = set(metrics["imdb"]["variants"]) | set(metrics["imdb"]["baselines"]["imdb"])
    assert set(READERS.values()) == known, "each reader of the experiment has a row"
    for first, on_imdb, on_others, on_newsgroups in rows:
        reader = READERS[first]
        for cell, name in ((on_imdb, "imdb"), (on_newsgroups, "newsgroups20")):
            if reader in metrics[name]["variants"]:
                check(cell, "# [#, #]", span(metrics[name]["variants"][reader]["test"]["accuracy"]))
            elif reader in metrics[name]["baselines"][name]:
                check(cell, "#", [metrics[name]["baselines"][name][reader]["test"]["accuracy"]])
            else:
                assert cell == "", f"{reader} was not run on {name}"
        network = again["variants"].get(reader)
        check(on_others, "#", [network["mean"] if network else again["baselines"][reader]])


def test_the_readers_verdicts_are_those_of_their_reports():
    verdicts = {name: by_name(evidence(f"{name}/verdicts.json")) for name in ("imdb", "newsgroups20")}
    assert set(CLAIMS_OF_READERS.values()) == set(verdicts["imdb"]) >= set(verdicts["newsgroups20"])
    for first, *cells in rows_of("docs/readers.md", CLAIMS, CLAIMS_OF_READERS):
        for cell, of_data in zip(cells, verdicts.values(), strict=True):
            verdict = of_data.get(CLAIMS_OF_READERS[first])
            if verdict is None:
                assert cell == "", f"nothing decides '{first}' there"
                continue
            words = verdict_in_words(verdict, ", leaning the other way")
            check(cell, f"{words}: ± [±, ±]", span(verdict["over_seeds_and_items"]))


def test_the_default_experiment_s_verdicts_are_those_of_its_report():
    verdicts = by_name(evidence("evaluate/verdicts.json"))
    assert set(CLAIMS_OF_THE_DEFAULT.values()) == set(verdicts)
    for first, words, cell in rows_of("README.md", DEFAULT, CLAIMS_OF_THE_DEFAULT):
        verdict = verdicts[CLAIMS_OF_THE_DEFAULT[first]]
        assert words == verdict_in_words(verdict, ", and leaning the other way")
        values = [*span(verdict["over_seeds"]), *span(verdict["over_seeds_and_items"])[1:]]
        # Where both intervals lie on one side of 0 it is Holm's p that keeps a pair undecided.
        holm = verdict["verdict"] == "inconclusive"
        expected = "± [±, ±], [±, ±]" + "; p after Holm #" * holm
        check(cell, expected, [*values, *([verdict["holm_p"]] if holm else [])])


def test_where_to_cut_is_told_as_the_study_found_it():
    cuts = pd.read_csv(RESULTS / "studies/quantiles/cuts.csv")
    # Where words and sentences are cut at different quantiles the table has no row.
    cuts = cuts[cuts["together"]]
    quantiles = {f"{quantile:g}": quantile for quantile in cuts["words"].unique()}
    for first, *cells in rows_of("docs/readers.md", CUTS, quantiles):
        for data, kept, accuracy in zip(("imdb", "newsgroups20"), cells[::2], cells[1::2], strict=True):
            (cut,) = cuts[(cuts["data"] == data) & (cuts["words"] == quantiles[first])].itertuples()
            if cut.train_words_kept == 1:
                assert kept == "all" + ", the knee" * cut.knee
            else:
                check(kept, "# %" + ", the knee" * cut.knee, [100 * cut.train_words_kept])
            check(accuracy, "# [#, #]", [cut.test_accuracy, cut.test_low, cut.test_high])


def test_what_made_the_difference_is_told_as_it_was_tried():
    trials = pd.read_csv(RESULTS / "imdb-films/trials.csv", keep_default_na=False)
    by_part = trials.groupby(["changed", "fold"])["best_accuracy"].mean()
    differences = {
        changed: (by_part[changed] - by_part[""]).mean() for changed in by_part.index.get_level_values("changed")
    }
    for first, cell in rows_of("docs/readers.md", TRIALS, SETTINGS_TRIED):
        figures = FIGURE.findall(cell)
        assert re.fullmatch("±(?:(?:; | or )±)*", FIGURE.sub("±", cell))
        for figure, settings in zip(figures, SETTINGS_TRIED[first], strict=True):
            for changed in settings:
                check(figure, "±", [differences[changed]])


def test_what_the_parts_of_a_gru_are_for_is_told_as_the_study_found_it():
    claims = [claim["measured"] for claim in evidence("studies/copying/results.json")["claims"]]
    measured = {claim["worse"]: claim for claim in claims if claim["better"] == "gru"}
    cells = {cell: cell.split("`")[1] for cell in CLAIMS_OF_COPYING.values()}
    assert set(cells.values()) == set(measured) and len(measured) == len(claims)
    for first, cell, words, difference in rows_of("docs/gru.md", COPYING, CLAIMS_OF_COPYING):
        assert cell == CLAIMS_OF_COPYING[first]
        claim = measured[cells[cell]]
        assert words == claim["verdict"]
        check(difference, "± [±, ±]", span(claim["over_seeds"]))
