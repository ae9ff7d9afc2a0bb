"""At which quantile to cut: the rule of the knee, the cuts, what padding costs, and the evidence of the study."""

import contextlib
import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from batches import collation
from evaluation.statistics import mean_interval
from storage.errors import command
from storage.files import read_json, write_json
from studies import cuts, quantiles
from studies.cuts import DEBUG, Corpus, Cut, Trainer
from studies.padding import WAYS, Timer, padded_to

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def twice(text_directory, tmp_path_factory) -> tuple[Path, Path]:
    """The study in its size for tests: called here, and as a command of two processes elsewhere."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    quantiles.study(DEBUG, [text_directory], here / "quantiles", CPU, kept=here / "kept")
    options = ["--debug", "--to", there, "--prepared", text_directory, "--workers", "2"]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.chdir(there):
        patch.setattr(sys, "argv", ["studies.quantiles", *map(str, options)])
        with pytest.raises(SystemExit, match="0"):
            command(quantiles.main)()
    assert "the knee |" in said.getvalue() and f"evidence: {there}/quantiles" in said.getvalue()
    return here / "quantiles", there / "quantiles"


def test_the_knee_is_the_smallest_quantile_that_loses_too_little_to_matter():
    accuracy = {
        0.5: [0.80, 0.81, 0.80, 0.81],
        # Loses .008 in the mean, and .012 is not excluded.
        0.75: [0.901, 0.881, 0.901, 0.885],
        # Loses .006, .005, .007, .006.
        0.9: [0.894, 0.895, 0.893, 0.894],
        0.95: [0.90, 0.90, 0.90, 0.90],
        1.0: [0.899, 0.899, 0.899, 0.899],
    }
    assert quantiles.knee(accuracy) == (0.9, 0.95)
    assert quantiles.knee({**accuracy, 0.9: [0.880, 0.895, 0.893, 0.894]}) == (0.95, 0.95)
    assert quantiles.knee(accuracy, smallest_effect=0.2) == (0.5, 0.95)
    # One seed has no interval and excludes nothing.
    assert quantiles.knee({0.5: [0.9], 1.0: [0.9001]}) == (1.0, 1.0)


def test_texts_are_cut_at_quantiles_of_the_training_split(text_directory):
    corpus = Corpus(text_directory)
    counts = np.load(text_directory / "word_counts.npy")[:48]
    sentences = np.load(text_directory / "sentence_counts.npy")[:48]
    lengths = np.sort(counts[counts > 0])
    # The smallest length that so many items do not exceed: item ceil(q n) of n.
    expected = (np.sort(sentences)[int(np.ceil(0.75 * 48)) - 1], lengths[int(np.ceil(0.5 * len(lengths))) - 1])
    assert corpus.kept(Cut(words=0.5, sentences=0.75)) == expected
    cut = corpus.cut(Cut(0.5, 0.75))
    kept = np.minimum(np.load(text_directory / "word_counts.npy"), expected[1])[:, : expected[0]]
    assert np.array_equal(cut.arrays["word_counts"], kept)
    whole = corpus.cut(Cut(1.0, 1.0))
    assert np.array_equal(whole.arrays["tokens"], np.load(text_directory / "tokens.npy"))
    shares = corpus.shares(Cut(0.5, 0.75))
    assert shares["test_words_kept"] == kept[69:].sum() / np.load(text_directory / "word_counts.npy")[69:].sum()
    assert corpus.shares(Cut(1.0, 1.0))["train_documents_whole"] == 1


def test_each_level_alone_has_the_other_at_its_usual_quantile():
    plan = dataclasses.replace(DEBUG, quantiles=(0.5, 0.95, 1.0), alone=True)
    assert plan.cuts[:3] == [Cut(0.5, 0.5), Cut(0.95, 0.95), Cut(1.0, 1.0)]
    assert set(plan.cuts[3:]) == {Cut(0.5, 0.95), Cut(1.0, 0.95), Cut(0.95, 0.5), Cut(0.95, 1.0)}


def test_what_padding_is_read_in_each_way(text_directory):
    corpus = Corpus(text_directory)
    timer = Timer(corpus.whole, (5, 8), dict(DEBUG.network), DEBUG.settings, CPU, count=100)
    ways = {steps.way: steps for steps in timer.all_ways()}
    assert tuple(ways) == WAYS
    words = collation.sizes(corpus.whole, corpus.whole.rows("train")).sum()
    assert ways["cut length"].padding == pytest.approx(1 - words / (48 * 5 * 8))
    # Batches of like length have less than those by chance, and these than all that there could be.
    like, chance, most = (ways[name].padding for name in ("longest, like length", "longest, any length", "cut length"))
    assert like < chance < most
    assert {len(steps.seconds) for steps in ways.values()} == {6} and ways["project"].documents == 48
    # What is too much for a CPU is not timed, and says so by having no time.
    timer = Timer(corpus.whole, (500, 800), dict(DEBUG.network), DEBUG.settings, CPU, count=2)
    row = timer.way("cut length", "off").as_row()
    assert row["n"] == 0 and row["median_ms"] is None and row["padding"] > 0.99


def test_padding_up_to_the_cut_adds_nothing_but_padding(prepared):
    given = collation.inputs(prepared, np.array([4, 7]))
    tokens, word_counts, sentence_counts = padded_to(given, 6, 9)
    assert tokens.shape == (2, 6, 9) and word_counts.shape == (2, 6)
    assert tokens.sum() == given[0].sum() and word_counts.sum() == given[1].sum()
    assert torch.equal(tokens[:, : given[0].shape[1], : given[0].shape[2]], given[0])
    assert torch.equal(sentence_counts, given[2])


def test_what_repeats_repeats_byte_for_byte_however_many_processes_there_are(twice):
    one, two = twice
    names = sorted(path.name for path in one.iterdir())
    assert names == ["cuts.csv", "figure.png", "results.json", "runs.csv", "steps.csv", "tuning.csv"]
    for name in ("results.json", "runs.csv", "tuning.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    timed = ["median_ms", "documents_a_second"]
    first, second = (pd.read_csv(place / "cuts.csv").drop(columns=timed) for place in twice)
    pd.testing.assert_frame_equal(first, second)


def test_the_figure_is_drawn_from_the_data_files_alone(twice, tmp_path):
    one, _ = twice
    for name in ("cuts.csv", "steps.csv"):
        (tmp_path / name).write_bytes((one / name).read_bytes())
    quantiles.draw_figure(tmp_path, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (one / "figure.png").read_bytes()


def test_what_is_said_follows_from_the_runs(twice):
    one, _ = twice
    said, runs, table = (
        json.loads((one / "results.json").read_text()),
        *(pd.read_csv(one / name) for name in ("runs.csv", "cuts.csv")),
    )
    assert list(runs.groupby("words").size()) == [DEBUG.seeds] * 2
    for row in table.itertuples():
        mine = runs[runs["words"] == row.words]
        span = mean_interval(mine["test_accuracy"].to_list())
        assert (row.test_accuracy, row.test_low) == pytest.approx((span.mean, span.low), abs=1e-5)
        assert set(mine["rate"]) == {row.rate}
    wide = runs.pivot(index="seed", columns="words", values="validation_accuracy")
    knee, best = quantiles.knee({quantile: wide[quantile].to_list() for quantile in wide})
    assert said["knees"] == {"small": {"knee": knee, "best": best}}
    assert table[table["knee"]]["words"].to_list() == [knee]
    (claim,) = said["claims"]
    tests = runs.pivot(index="seed", columns="words", values="test_accuracy")
    assert claim["measured"]["differences"] == pytest.approx((tests[1.0] - tests[0.5]).to_list(), abs=1e-5)


def test_rates_are_chosen_on_validation_and_tuning_never_reads_the_test_split(twice, text_directory, monkeypatch):
    one, _ = twice
    tuning, runs = pd.read_csv(one / "tuning.csv"), pd.read_csv(one / "runs.csv")
    assert tuning["test_accuracy"].isna().all() and not set(tuning["seed"]) & set(runs["seed"])
    best = tuning.sort_values(["validation_accuracy", "rate"], ascending=[False, True]).groupby("words")["rate"].first()
    assert runs.groupby("words")["rate"].first().to_dict() == best.to_dict()


def test_what_is_kept_is_not_trained_again(twice, text_directory, tmp_path, monkeypatch):
    one, _ = twice
    monkeypatch.setattr(cuts.Trainer, "make", lambda *given: pytest.fail("trained again"))
    again = quantiles.study(DEBUG, [text_directory], tmp_path / "quantiles", CPU, kept=one.parent / "kept")
    assert json.loads(json.dumps(again)) == json.loads((one / "results.json").read_text())
    for name in ("cuts.csv", "steps.csv"):
        assert (tmp_path / "quantiles" / name).read_bytes() == (one / name).read_bytes()


def test_other_settings_are_another_run(text_directory, tmp_path):
    corpus, run = Corpus(text_directory), cuts.Run(Cut(1.0, 1.0), 0.01, 0)
    places = {
        Trainer(plan, corpus, CPU, {}, tmp_path).place(run)
        for plan in (DEBUG, dataclasses.replace(DEBUG, training={**DEBUG.training, "batch_size": 4}), cuts.Plan())
    }
    assert len(places) == 3
    # What says only how many runs there are changes none.
    more = dataclasses.replace(DEBUG, seeds=5, rates=(0.01,), alone=True)
    assert Trainer(more, corpus, CPU, {}, tmp_path).place(run) in places


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--training", "{"], "is not JSON"),
        (["--training", '{"epochs": 3}'], "unknown name 'epochs' in --training"),
        (["--network", '{"hidden_size": 0}'], "hidden_size is 0"),
        (["--rates", "0.01", "-1"], "learning_rate is -1"),
        (["--seeds", "0"], "give whole numbers of 1 or more"),
        (["--workers", "0"], "--workers is 0: give 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(options, said, text_directory, tmp_path, monkeypatch, capsys):
    given = ["--debug", "--to", str(tmp_path), "--prepared", str(text_directory), *options]
    monkeypatch.setattr(sys, "argv", ["studies.quantiles", *given])
    with pytest.raises(SystemExit, match="2"):
        command(quantiles.main)()
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_cut_already_is_refused(text_directory, tmp_path):
    for path in text_directory.iterdir():
        (tmp_path / path.name).symlink_to(path)
    description = read_json(text_directory / "prepared.json")
    description["lengths"]["words"]["longest"] = 9
    (tmp_path / "prepared.json").unlink()
    write_json(tmp_path / "prepared.json", description)
    with pytest.raises(cuts.InputError, match="is cut already .words at 8 of 9."):
        Corpus(tmp_path)
