"""The report of a whole experiment, from run folders whose probabilities are invented."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import vl_convert
from dvc_render.vega import VegaRenderer
from rich.console import Console

from reread.evaluation import charts
from reread.evaluation.baselines import Baseline
from reread.evaluation.head import recommendations, warnings_of
from reread.evaluation.items import item_spread
from reread.evaluation.page import MINUS, TEMPLATES, WORDS
from reread.evaluation.report import evaluate_experiment, judge_experiment
from reread.evaluation.summary import champion_of
from reread.evaluation.tables import differences
from reread.evaluation.terminal import terminal_table
from reread.evaluation.trials import at_an_end
from reread.evaluation.verdict_table import STYLES
from reread.goals import goal
from reread.storage import files
from reread.storage.errors import InputError
from reread.storage.files import read_json, sha256_file, write_json
from reread.storage.git import Commit
from reread.storage.ledger import open_test_split
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import write_result
from reread.verdicts.reads import Fixed
from reread.verdicts.rule import VERSION
from tests.digests import write_digests

SEEDS = range(6)
CLAIM = "A <script>hierarchy</script> reads better."


def experiment_of(variants: dict, comparisons: list[tuple[str, str, str]], **others) -> dict:
    return {
        "name": "trial",
        "title": "Does <b>it</b> help?",
        "variants": variants,
        "seeds": list(SEEDS),
        "comparisons": [
            {"name": f"{a} {b}", "claim": CLAIM, "source": "Yang 2016", "treatment": a, "control": b, "metric": metric}
            for a, b, metric in comparisons
        ],
        "equivalence_margin": 0.02,
        "alpha": 0.05,
        "evaluate_on": "test",
        "tuning": {"budget": "3 trials a variant", "learning_rate": [0.001, 0.003]},
        **others,
    }


@pytest.fixture
def texts(tools, tmp_path, text_data):
    """An experiment on documents where han is far ahead, with weights for the attention page."""
    variants = {"han": {"model": "han", "data": "corpus"}, "flat": {"model": "gru_flat", "data": "corpus"}}
    records = [
        tools["write_record"](tmp_path / "runs", name, variants[name]["model"], "corpus", text_data, seed, skill)
        for seed in SEEDS
        for name, skill in (("flat", 1.0), ("han", 3.0))
    ]
    description = read_json(text_data / "prepared.json")
    for record in records:
        tools["add_weights"](record.run_directory, record.job["model"], description, record.seed)
    return experiment_of(variants, [("han", "flat", "accuracy")]), records


def baseline_of(tools, data, skill: float = 2.0) -> Baseline:
    prepared = open_prepared(data)
    labels = {split: np.array(prepared.labels[prepared.rows(split)]) for split in ("validation", "test")}
    rng, classes = np.random.default_rng(0), prepared.classes
    probabilities = {
        split: tools["invented_probabilities"](of_split, len(classes), skill, rng) for split, of_split in labels.items()
    }
    metrics = goal(prepared.task).measure(probabilities, labels, classes)
    return Baseline("TF-IDF + logistic regression", {"1": 0.8}, 1.0, None, 99, metrics, probabilities)


def chart_of(page: str, name: str) -> dict:
    """A chart of a report, by its name."""
    return json.loads(re.search(rf'<script type="application/json" id="chart-{name}">(.*?)</script>', page)[1])


def test_the_plan_of_a_report_is_replaced_with_it(tmp_path, texts, monkeypatch):
    """Of two evaluations at once, and of one that is killed, plan.json is that of the metrics beside it."""
    experiment, records = texts
    destination = tmp_path / "reports" / "trial"
    evaluate_experiment(experiment, records, {}, destination, record={"key": "old"})

    def killed(working, place):
        assert read_json(working / "plan.json") == {"key": "new"} and place == destination
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "exchange", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_experiment(experiment, records, {}, destination, record={"key": "new"})
    assert read_json(destination / "plan.json") == {"key": "old"}


def test_the_whole_report(tools, tmp_path, texts, text_data):
    experiment, records = texts
    destination = tmp_path / "reports" / "trial"
    report = evaluate_experiment(
        experiment,
        records,
        {"corpus": {"tf-idf": baseline_of(tools, text_data)}},
        destination,
        "make run",
        {"torch": "2.13.0"},
        record={"key": "0123"},
    )
    assert read_json(destination / "plan.json") == {"key": "0123"} and str(destination / "plan.json") in report["files"]
    assert sorted(path.name for path in destination.iterdir()) == [
        "attention.html", "calibration.csv", "classes.csv", "confusion.csv", "curves.csv", "differences.csv",
        "differences.png", "digests.json", "files.json.xz", "items.npz", "latency.json", "metrics.json", "plan.json",
        "report.html", "verdicts.json",
    ]  # fmt: skip
    metrics = read_json(destination / "metrics.json")
    assert metrics == report["metrics"]
    assert "Learnt betas" not in (destination / "report.html").read_text()
    han = metrics["variants"]["han"]
    values = [han["seeds"][str(seed)]["test"]["accuracy"] for seed in SEEDS]
    assert han["test"]["accuracy"]["mean"] == pytest.approx(np.mean(values)) and han["n"] == 6
    assert han["test"]["accuracy"]["low"] < np.mean(values) < han["test"]["accuracy"]["high"]
    assert han["still_improving_seeds"] == []
    assert {seed: run["ended"] for seed, run in han["seeds"].items() if run["ended"] != "stopped early"} == {
        "3": "schedule completed"
    }
    validation = {seed: run["validation"]["accuracy"] for seed, run in han["seeds"].items()}
    assert validation[str(han["best_seed"])] == max(validation.values())
    assert metrics["champions"]["corpus"]["variant"] == "han"
    assert metrics["champions"]["corpus"]["run_key"] == f"han-{han['best_seed']}"

    (verdict,) = read_json(destination / "verdicts.json")["verdicts"]
    flat = metrics["variants"]["flat"]
    others = [flat["seeds"][str(seed)]["test"]["accuracy"] for seed in SEEDS]
    assert verdict["scores"] == {"treatment": pytest.approx(values), "control": pytest.approx(others)}
    assert verdict["seeds"] == {"treatment": list(SEEDS), "control": list(SEEDS)}
    assert verdict["mean"] == pytest.approx(np.mean(values) - np.mean(others)) == verdict["interval"]["mean"]
    # All six seeds of one side are above all of the other: the smallest p of 924 splits.
    assert verdict["verdict"] == "supported" and verdict["p"] == pytest.approx(2 / 924)
    assert (verdict["kind"], verdict["rule"], verdict["items"]) == ("two networks", VERSION, 60)


def test_a_published_figure_is_compared_with_every_seed(tools, tmp_path, texts, text_data):
    """Over seeds this is the one-sample sign-flip test; tests of the bootstrap have the variance of its items."""
    experiment, records = texts
    pair = {**experiment["comparisons"][0], "control": "reference 0.5", "reference": 0.5}
    report = evaluate_experiment({**experiment, "comparisons": [pair]}, records, {}, tmp_path / "trial")
    (verdict,) = report["verdicts"]
    han = report["metrics"]["variants"]["han"]["seeds"]
    values = np.array([han[str(seed)]["test"]["accuracy"] for seed in SEEDS])
    assert verdict["scores"] == {"treatment": pytest.approx(values.tolist()), "control": [0.5]}
    assert verdict["kind"] == "one figure" and verdict["reference"] == 0.5
    assert verdict["verdict"] == "supported" and verdict["p"] == 2 / 64
    assert "han is better than reference 0.5" in verdict["sentence"]
    page = (tmp_path / "trial/report.html").read_text()
    assert chart_of(page, "differences")["data"]["values"][0]["pair"] == "han|− reference 0.5|accuracy"
    (missing,) = judge_experiment({**experiment, "comparisons": [pair]}, [], {}, "test")
    assert missing.verdict == "inconclusive" and missing.sentence == "Not measured: han has no finished seed."


def test_a_baseline_in_a_pair_is_compared_with_every_seed_with_its_one_figure(tools, tmp_path, texts, text_data):
    experiment, records = texts
    svm = replace(baseline_of(tools, text_data, skill=0.5), name="NB-SVM", temperature=0.25)
    experiment = experiment_of(experiment["variants"], [("han", "nb-svm", "accuracy")])
    repeated = {"corpus": np.arange(60) < 5}
    baselines = {"corpus": {"nb-svm": svm}}
    report = evaluate_experiment(experiment, records, baselines, tmp_path / "trial", repeated=repeated)
    (verdict,) = report["verdicts"]
    han, flat = (report["metrics"]["variants"][name]["seeds"] for name in ("han", "flat"))
    values, figure = [han[str(seed)]["test"]["accuracy"] for seed in SEEDS], svm.metrics["test"]["accuracy"]
    assert verdict["scores"] == {"treatment": pytest.approx(values), "control": [pytest.approx(figure)]}
    assert verdict["seeds"]["control"] == [] and verdict["verdict"] == "supported" and verdict["p"] == 2 / 64
    assert verdict["baseline"] == "nb-svm"
    of_seeds = [record.probabilities("test") for record in records if record.variant == "han"]
    labels = records[0].labels("test")
    by_hand = item_spread(goal("single-label").metrics[0], of_seeds, [svm.probabilities["test"]], labels)
    assert verdict["item_deviation"] == pytest.approx(by_hand.deviation, abs=1e-9)
    assert verdict["interval"]["low"] == min(verdict[name]["low"] for name in ("over_seeds", "over_seeds_and_items"))
    again = report["metrics"]["without_repeated"]["corpus"]
    kept = [(predictions[5:].argmax(axis=1) == labels[5:]).mean() for predictions in of_seeds]
    assert again["rows_left_out"] == 5 and again["variants"]["han"]["mean"] == pytest.approx(np.mean(kept))
    alone = (svm.probabilities["test"][5:].argmax(axis=1) == labels[5:]).mean()
    assert again["baselines"] == {"nb-svm": pytest.approx(alone)}
    page = (tmp_path / "trial" / "report.html").read_text()
    assert "Without the 5 test rows that also occur, byte for byte" in page
    assert "nb-svm is one figure, taken as exact." in page
    assert (
        "one figure: a baseline, which is fitted once" in page
        and "by one temperature, also chosen on validation: 0.25" in page
    )
    assert "nb-svm" in (tmp_path / "trial" / "differences.csv").read_text()

    # The other way round, and of a loss, of which less is better.
    turned = experiment_of(experiment["variants"], [("nb-svm", "flat", "loss")])
    (verdict,) = judge_experiment(turned, records, {"corpus": {"nb-svm": svm}}, "test")
    expected = [flat[str(seed)]["test"]["loss"] - svm.metrics["test"]["loss"] for seed in SEEDS]
    assert list(verdict.differences.values()) == pytest.approx(expected, abs=1e-8)
    of_accuracy = judge_experiment(experiment, records, {"corpus": {"nb-svm": svm}}, "test")
    assert [judged.comparison.span for judged in (verdict, *of_accuracy)] == [None, 1.0]
    # A network that has not run, a baseline that the data set does not have.
    kept = [record for record in records if record.variant == "han"]
    (verdict,) = judge_experiment(turned, kept, {"corpus": {"nb-svm": svm}}, "test")
    assert verdict.sentence == "Not measured: flat has no finished seed."
    with pytest.raises(InputError, match="unknown name 'nb-svm' in comparison 'han nb-svm': the baselines of corpus"):
        judge_experiment(experiment, records, {"corpus": {"tf-idf": svm}}, "test")


def test_the_page_is_escaped_self_contained_and_opens_with_the_verdicts(tools, tmp_path, texts, text_data):
    experiment, records = texts
    baselines = {"corpus": {"tf-idf": baseline_of(tools, text_data)}}
    evaluate_experiment(experiment, records, baselines, tmp_path / "trial", "make run", {"torch": "2.13.0<b>"})
    page = (tmp_path / "trial" / "report.html").read_text()
    assert "<script>hierarchy" not in page and "&lt;script&gt;hierarchy" in page and "2.13.0&lt;b&gt;" in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!data:image/png|#|attention\.html")[^"]*', markup) == []
    assert "://" not in markup and "default-src 'none'" in markup
    order = [page.index(f'id="{name}"') for name in re.findall(r'<section id="(\w+)"', page)]
    assert re.findall(r'<section id="(\w+)"', page)[:3] == ["verdicts", "evidence", "variants"] and order == sorted(
        order
    )
    for expected in (
        "✓ supported",
        "(schedule completed)",
        "TF-IDF",
        "3 trials a variant",
        "make run",
        "0123abcd",
        "93.1 %",
    ):
        assert expected in page


def test_a_second_read_of_the_test_split_is_marked_and_all_are_listed(tmp_path, texts):
    experiment, records = texts
    experiment = {**experiment, "data": {"corpus": {"version": "0123abcd"}}}
    ledger = tmp_path / "results" / "test-reads.jsonl"
    reports = {}
    for name, seeds in (("first", [0]), ("second", list(SEEDS))):
        with open_test_split("trial", name, {"corpus": "0123abcd"}, {"seeds": seeds}, path=ledger) as reads:
            pass
        reports[name] = evaluate_experiment(experiment, records, {}, tmp_path / name, reads=reads, plan=name)
    first, second = (reports[name]["verdicts"][0] for name in ("first", "second"))
    assert (first["earlier_reads"], second["earlier_reads"]) == (0, 1) and "read before" not in first["sentence"]
    page = (tmp_path / "second" / "report.html").read_text()
    assert "read before with other settings: once; 1 of these reads was by this experiment" in page
    assert "has been read with 2 different plans" in page and all(read.plan in page for read in reads)
    assert "corpus <code>0123abcd</code>" in page and "Not known whether fixed before the runs. 1 comparison, " in page
    # The form and the rule were committed before the first read, or after it.
    early, late = (Commit("0123456789", date) for date in ("2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"))
    changed = "Changed after 2 reads of the test split: comparisons, margins, seeds, alpha or the rule. 1 comparison, "
    words = {Fixed(early, early): "Fixed before the runs. 1 comparison, ", Fixed(late, early): changed}
    for fixed, expected in words.items():
        evaluate_experiment(experiment, records, {}, tmp_path / "fixed", reads=reads, plan="second", fixed=fixed)
        page = (tmp_path / "fixed" / "report.html").read_text()
        assert expected in page and f"<code>0123456</code> of {fixed.form.date}" in page
    validation = {**experiment, "evaluate_on": "validation"}
    tuned = evaluate_experiment(validation, records, {}, tmp_path / "tune", reads=reads, plan="second")
    assert tuned["verdicts"][0]["earlier_reads"] == 0
    assert "before the runs" not in (tmp_path / "tune" / "report.html").read_text()


def test_documents_of_a_group_are_drawn_together(tmp_path, texts):
    experiment, records = texts
    alone = evaluate_experiment(experiment, records, {}, tmp_path / "alone")["verdicts"][0]
    prepared = records[0].prepared_directory
    np.save(prepared / "groups.npy", np.arange(99) // 10)
    description = read_json(prepared / "prepared.json")
    listed = {"file": "groups.npy", "shape": [99], "dtype": "int64", "sha256": sha256_file(prepared / "groups.npy")}
    write_json(prepared / "prepared.json", {**description, "arrays": {**description["arrays"], "groups": listed}})
    together = evaluate_experiment(experiment, records, {}, tmp_path / "groups")["verdicts"][0]
    assert "7 groups of 60 items" in together["method"] and (together["item_units"], alone["item_units"]) == (7, 60)
    assert together["over_seeds"] == alone["over_seeds"] and together["p"] == alone["p"]


def opened_again(records):
    """Records that have read no file yet."""
    return [replace(record) for record in records]


def end_at_the_best_epoch(record, last_rate):
    """The run of a record ends at its best epoch, with this share of its highest rate."""
    result = record.result
    history = pd.read_csv(record.run_directory / "history.csv")
    history["learning_rate"] = [*[0.1] * (len(history) - 1), 0.1 * last_rate]
    (record.run_directory / "history.csv").write_text(history.to_csv(index=False))
    write_result(record.run_directory, {**result, "stopped": "max_epochs", "best_epoch": result["epochs"]})


def test_a_rate_that_is_high_when_a_run_ends_at_its_best_epoch_was_still_improving(tmp_path, texts):
    experiment, records = texts
    end_at_the_best_epoch(records[0], 1.0)
    variants = evaluate_experiment(experiment, opened_again(records), {}, tmp_path / "trial")["metrics"]["variants"]
    assert variants[records[0].variant]["still_improving_seeds"] == [records[0].seed]
    assert "still improving at the end (1 of 6)" in (tmp_path / "trial" / "report.html").read_text()
    # A schedule that decays ends there by design.
    end_at_the_best_epoch(records[0], 0.01)
    variants = evaluate_experiment(experiment, opened_again(records), {}, tmp_path / "trial")["metrics"]["variants"]
    assert variants[records[0].variant]["still_improving_seeds"] == []


def test_a_side_that_was_still_learning_or_at_its_grid_s_edge_is_named_beside_the_verdict(tmp_path, texts):
    experiment, records = texts
    (plain,) = evaluate_experiment(experiment, records, {}, tmp_path / "plain")["verdicts"]
    edge = {"flat": ["has the highest learning_rate that its tuning tried"]}
    (verdict,) = evaluate_experiment(experiment, records, {}, tmp_path / "edge", untuned=edge)["verdicts"]
    assert verdict["verdict"] == plain["verdict"] and verdict["sentence"].startswith(plain["sentence"])
    assert "flat has the highest learning_rate" in verdict["sentence"]
    assert "flat has the highest learning_rate" in (tmp_path / "edge" / "report.html").read_text()
    for record in records[:6:2]:
        end_at_the_best_epoch(record, 1.0)
    learning = opened_again(records)
    (verdict,) = evaluate_experiment(experiment, learning, {}, tmp_path / "learning")["verdicts"]
    assert f"{records[0].variant} was still learning when it ended (3 of 6 seeds)" in verdict["sentence"]


def test_an_experiment_may_withhold_the_verdict_of_what_is_not_tuned(tmp_path, texts):
    experiment, records = texts
    experiment = {**experiment, "withhold_untuned": True}
    (verdict,) = evaluate_experiment(experiment, records, {}, tmp_path / "tuned")["verdicts"]
    assert verdict["verdict"] == "supported"
    edge = {"flat": ["has the highest learning_rate that its tuning tried"]}
    (verdict,) = evaluate_experiment(experiment, records, {}, tmp_path / "edge", untuned=edge)["verdicts"]
    assert verdict["verdict"] == "inconclusive" and verdict["flags"] == [f"flat {edge['flat'][0]}."]
    # Of a variant that no comparison judges nothing is withheld.
    other = {"other": edge["flat"]}
    (verdict,) = evaluate_experiment(experiment, records, {}, tmp_path / "other", untuned=other)["verdicts"]
    assert verdict["verdict"] == "supported"


def test_settings_that_differ_begin_with_the_name_of_the_file_that_they_select(tmp_path, texts):
    experiment, records = texts
    training = {
        "augmentation": [{"deviation": 0.1, "name": "noise"}, {"name": "flip"}],
        "optimizer": {"momentum": 0.9, "name": "sgd", "nesterov": True},
    }
    for record in records:
        job = read_json(record.run_directory / "job.json")
        own = training if record.variant == "han" else {"augmentation": [], "optimizer": {"name": "adamw"}}
        write_json(record.run_directory / "job.json", {**job, "training": own})
    evaluate_experiment(experiment, opened_again(records), {}, tmp_path / "trial")
    page = (tmp_path / "trial" / "report.html").read_text()
    for name, han, flat in (
        ("augmentation", "noise, deviation: 0.1; flip", "none"),
        ("optimizer", "sgd, momentum: 0.9, nesterov: yes", "adamw"),
    ):
        assert f"training.<wbr>{name}</code></th><td>{han}</td><td>{flat}</td>" in page


def test_seconds_and_peak_memory_of_runs_on_a_gpu_are_shown_beside_accuracy(tmp_path, texts):
    experiment, records = texts
    evaluate_experiment(experiment, records, {}, tmp_path / "trial")
    assert "peak GPU memory" not in (tmp_path / "trial" / "report.html").read_text()
    for record in records:
        write_json(
            record.run_directory / "timing.json", {"seconds": 30.0, "peak_memory_bytes": (record.seed + 1) * 2**29}
        )
    evaluate_experiment(experiment, opened_again(records), {}, tmp_path / "trial")
    page = (tmp_path / "trial" / "report.html").read_text()
    middle = 2**29 * (np.median(SEEDS) + 1)
    assert page.count("peak GPU memory") == 1 and re.search(
        rf'>30 s</td><td data-value="{middle:.0f}[.0]*">{middle / 2**30:.3g} GiB</td>', page
    )
    assert read_json(tmp_path / "trial" / "latency.json")["han"]["memory"] == middle


def test_the_epochs_before_a_resume_count_at_the_pace_of_those_after_it(texts):
    record = texts[1][0]
    rows = len(record.prepared.rows("train"))
    for trained_here in (6, 2):  # of six epochs
        write_json(record.run_directory / "timing.json", {"seconds": 30.0, "samples": trained_here * rows})
        assert opened_again([record])[0].training_seconds == pytest.approx(30.0 * 6 / trained_here)


def test_the_chart_of_differences_names_the_interval_that_decides(texts):
    experiment, records = texts
    drawn = charts.differences(differences(judge_experiment({**experiment, "alpha": 0.1}, records, {}, "test")))
    assert drawn["title"]["text"] == ["blue: the interval that decides (90 %)"]


def test_two_evaluations_are_byte_equal(tmp_path, texts):
    experiment, records = texts
    first, second = tmp_path / "first", tmp_path / "second"
    evaluate_experiment(experiment, records, {}, first)
    evaluate_experiment(experiment, list(reversed(records)), {}, second)
    for path in first.iterdir():
        if path.name not in ("digests.json", "latency.json", "report.html"):
            assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_tuning_never_reads_the_test_split(tmp_path, texts):
    experiment, records = texts
    for record in records:
        (record.evaluation_directory / "test.npy").unlink()
        metrics = record.evaluation_directory / "metrics.json"
        metrics.write_text(
            json.dumps({name: measured for name, measured in read_json(metrics).items() if name != "test"})
        )
        write_digests(record.evaluation_directory)
    report = evaluate_experiment({**experiment, "evaluate_on": "validation"}, records, {}, tmp_path / "tune")
    assert report["metrics"]["evaluated_on"] == "validation" and "test" not in report["metrics"]["variants"]["han"]
    assert "tuned" not in report["metrics"]
    page = (tmp_path / "tune" / "report.html").read_text()
    assert "The test split was not read" in page and not (tmp_path / "tune" / "attention.html").exists()
    with pytest.raises(InputError, match="no metrics of the test split"):
        evaluate_experiment(experiment, records, {}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_grid_says_which_trial_of_each_variant_is_best_and_draws_that_one(tmp_path, texts):
    experiment, records = texts
    tuning = {**experiment, "trials": {"reader": ["flat", "han"]}, "comparisons": [], "evaluate_on": "validation"}
    report = evaluate_experiment(tuning, records, {}, tmp_path / "tune")
    (name, choice), means = report["metrics"]["tuned"].popitem(), report["metrics"]["variants"]
    assert (name, choice["chosen"]) == ("reader", "han")
    assert choice["trials"] == {trial: means[trial]["validation"]["accuracy"]["mean"] for trial in ("flat", "han")}
    assert "flat" in (tmp_path / "tune" / "curves.csv").read_text()
    page = (tmp_path / "tune" / "report.html").read_text()
    for kind in ("scores", "curves", "calibration", "confusion"):
        rows = chart_of(page, f"{kind}-1")["data"]["values"]
        assert {row["variant"].partition("|")[0] for row in rows} == {"han"}
    assert "reader: 2 trials; the best mean on validation has <strong>han</strong>" in page


def test_equal_seeds_are_shown_without_an_interval(tmp_path, texts):
    experiment, records = texts
    pair = [record for record in records if record.seed < 2]
    for record in pair[2:]:  # the second seed of each has the answers of the first
        first = next(candidate for candidate in pair if candidate.variant == record.variant)
        for name in ("test.npy", "validation.npy", "metrics.json"):
            shutil.copy(first.evaluation_directory / name, record.evaluation_directory / name)
        write_digests(record.evaluation_directory)
    report = evaluate_experiment(experiment, opened_again(pair), {}, tmp_path / "trial")
    console = Console(width=200, record=True)
    console.print(terminal_table(report["metrics"], report["verdicts"]))
    for shown in (console.export_text(), (tmp_path / "trial" / "report.html").read_text()):
        mean = report["metrics"]["variants"]["han"]["test"]["accuracy"]["mean"]
        assert "no spread" in shown and "± 0.0000" not in shown and f"[{mean:.4f}, {mean:.4f}]" not in shown


def test_a_trial_at_an_end_of_its_grid_says_so(tools, tmp_path, texts, text_data):
    names = [f"han/learning_rate={rate},cell={cell}" for rate in (0.003, 0.01, 3e-05) for cell in ("gru", "rnn")]
    for chosen, ends in ((names[0], []), (names[3], ["highest learning_rate"]), (names[4], ["lowest learning_rate"])):
        assert at_an_end({"chosen": chosen, "trials": dict.fromkeys(names, 0.5)}) == ends
    assert at_an_end({"chosen": names[3], "trials": dict.fromkeys(names[:4], 0.5)}) == []  # of two values
    experiment, records = texts
    report = evaluate_experiment(experiment, records, {}, tmp_path / "trial")
    metrics = report["metrics"] | {"tuned": {"han": {"chosen": names[4], "trials": dict.fromkeys(names, 0.5)}}}
    console = Console(width=200, record=True)
    console.print(terminal_table(metrics, []))
    assert "learning_rate=3e-05,cell=gru, 0.5000 (the lowest learning_rate tried)" in console.export_text()


def test_learnt_betas_are_drawn_by_layer_of_the_variants_that_have_them(tools, tmp_path, image_data):
    """One beta per layer, or one per channel; ReLU has none."""
    learnt = {"beta": {"one": [0.5], "two": [1.5]}, "channels": {"one": [0.25, 0.75], "two": [2.0, 4.0]}}
    variants = {name: {"model": "densenet", "data": "digits"} for name in ("relu", *learnt)}
    records = [
        tools["write_record"](tmp_path / "runs", name, "densenet", "digits", image_data, seed, 1.0)
        for seed in (0, 1)
        for name in variants
    ]
    for record in records:
        if record.variant in learnt:
            result = read_json(record.run_directory / "result.json")
            write_result(record.run_directory, result | {"betas": learnt[record.variant]})
    evaluate_experiment(experiment_of(variants, []), records, {}, tmp_path / "trial")
    drawn = chart_of((tmp_path / "trial" / "report.html").read_text(), "betas-1")
    assert drawn["facet"]["sort"] == ["beta", "channels"] and len(drawn["data"]["values"]) == 8
    with open(tmp_path / "trial" / "betas.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "1"]
    assert [(row["variant"], row["layer"], row["name"]) for row in rows] == [
        ("beta", "1", "one"), ("beta", "2", "two"), ("channels", "1", "one"), ("channels", "2", "two"),
    ]  # fmt: skip
    assert [float(row["beta"]) for row in rows] == [0.5, 1.5, 0.5, 3.0]
    assert (rows[3]["low"], rows[3]["high"]) == ("2", "4")
    page = (tmp_path / "trial" / "report.html").read_text()
    assert '<a href="#betas">Learnt betas</a>' in page and '<section id="betas">' in page
    of_layer = vl_convert.vegalite_to_svg(drawn).partition("X-axis titled 'layer'")[2].partition("titled")[0]
    assert re.findall(r"<text[^>]*>([0-9.]+)</text>", of_layer) == ["1", "2"]


def test_several_labels(tools, tmp_path):
    data = tools["write_image_data"](
        tmp_path / "prepared" / "xray", {"train": 4, "validation": 40, "test": 80}, ["a", "b", "c"], "multi-label"
    )
    variants = {name: {"model": "densenet", "data": "xray"} for name in ("relu", "swish")}
    records = [
        tools["write_record"](tmp_path / "runs", name, "densenet", "xray", data, seed, skill)
        for seed in SEEDS
        for name, skill in (("relu", 1.0), ("swish", 1.1))
    ]
    experiment = experiment_of(variants, [("swish", "relu", "macro_auroc")])
    report = evaluate_experiment(
        experiment, records, {"xray": {"linear": baseline_of(tools, data)}}, tmp_path / "trial"
    )
    swish = report["metrics"]["variants"]["swish"]
    assert swish["score"] == "macro_auroc" and set(swish["test"]["auroc"]) == {"a", "b", "c"}
    assert report["verdicts"][0]["resamples"] == 2_000 and "accuracy" not in swish["test"]
    with open(tmp_path / "trial" / "confusion.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == "swish" and row["label"] == "a"]
    truth = open_prepared(data).labels[44:, 0]
    assert sum(int(row["count"]) for row in rows if row["actual"] == "yes") == 6 * truth.sum()
    # At each seed's threshold of the label, not at 0.5.
    in_table = sum(int(row["count"]) for row in rows if row["actual"] == row["predicted"] == "yes")
    of_swish = [record for record in records if record.variant == "swish"]
    thresholds = [record.metrics(["validation"])["validation"]["thresholds"]["by_class"]["a"] for record in of_swish]
    scores = [record.probabilities("test")[:, 0] for record in of_swish]
    hits = [((own >= at) & (truth == 1)).sum() for own, at in zip(scores, thresholds, strict=True)]
    assert in_table == sum(hits) != sum(((own >= 0.5) & (truth == 1)).sum() for own in scores)
    with pytest.raises(InputError, match="unknown name 'accuracy'"):
        evaluate_experiment(experiment_of(variants, [("swish", "relu", "accuracy")]), records, {}, tmp_path / "other")


def test_a_perfect_score_is_flagged(tools, tmp_path, image_data):
    variants = {name: {"model": "densenet", "data": "digits"} for name in ("relu", "swish")}
    records = [
        tools["write_record"](tmp_path / "runs", name, "densenet", "digits", image_data, seed, skill)
        for seed in SEEDS
        for name, skill in (("relu", 1.0), ("swish", 60.0))
    ]
    report = evaluate_experiment(experiment_of(variants, [("swish", "relu", "accuracy")]), records, {}, tmp_path / "t")
    assert report["metrics"]["variants"]["swish"]["suspiciously_perfect"]
    assert report["verdicts"][0]["verdict"] == "inconclusive" and report["verdicts"][0]["flags"]
    assert "suspiciously perfect" in (tmp_path / "t" / "report.html").read_text()


def test_a_baseline_that_is_better_on_validation_is_the_champion_and_the_report_says_so(
    tools, tmp_path, texts, text_data
):
    experiment, records = texts
    best = {"corpus": {"tf-idf": baseline_of(tools, text_data, skill=8.0)}}
    metrics = evaluate_experiment(experiment, records, best, tmp_path / "trial")["metrics"]
    assert metrics["champions"]["corpus"]["variant"] == "han" and champion_of("corpus", metrics)[0] == "tf-idf"
    page = (tmp_path / "trial" / "report.html").read_text()
    assert "A baseline has the best accuracy here: <strong>TF-IDF + logistic regression</strong>" in page
    row = re.search(r'<tr class="baseline">.*?</tr>', page, re.DOTALL)[0]
    assert ">champion</span>" in row and page.count(">champion</span>") == 1 and 'class="best"' in row


@pytest.mark.parametrize("order", [("tf-idf", "char-svm"), ("char-svm", "tf-idf")])
def test_of_two_equal_baselines_the_smaller_is_the_champion_in_whatever_order_metrics_json_has_them(order):
    """It is written with sorted names, and the champion is registered from what was not written yet."""
    baselines = {name: {"validation": {"accuracy": 1.0}, "parameters": len(name)} for name in order}
    best = {"variant": "han", "metric": "accuracy", "mean": 0.9}
    metrics = {"champions": {"corpus": best}, "baselines": {"corpus": baselines}}
    assert champion_of("corpus", metrics) == ("tf-idf", 1.0)
    best["mean"] = 1.0
    assert champion_of("corpus", metrics) == ("han", 1.0)


def test_the_terminal_table(tools, tmp_path, texts, text_data):
    experiment, records = texts
    report = evaluate_experiment(
        experiment, records, {"corpus": {"tf-idf": baseline_of(tools, text_data)}}, tmp_path / "trial"
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(report["metrics"], report["verdicts"]))
    text = " ".join(console.export_text().split())
    assert "…" not in text  # at 80 columns headings and figures are whole
    for expected in ("han ★", "tf-idf", "(baseline)", "supported", CLAIM, "corrected p of a difference 0.0022"):
        assert expected in text
    assert "no model is registered" not in text
    report = evaluate_experiment({**experiment, "evaluate_on": "validation"}, records, {}, tmp_path / "validation")
    console.print(terminal_table(report["metrics"], report["verdicts"]))
    assert "on the validation split; validation only: no model is registered" in " ".join(console.export_text().split())


def test_the_report_begins_with_the_claims_and_what_to_use(tools, tmp_path, texts, text_data):
    experiment, records = texts
    edge = {"flat": ["has the highest learning_rate that its tuning tried"], "none": ["is no variant"]}
    baselines = {"corpus": {"tf-idf": baseline_of(tools, text_data, skill=8.0)}}
    for place, there, used in (("networks", {}, "han"), ("baselines", baselines, "TF-IDF + logistic regression")):
        report = evaluate_experiment(experiment, records, there, tmp_path / place, untuned=edge)
        metrics, (verdict,) = report["metrics"], report["verdicts"]
        scores = metrics["baselines"]["corpus"]["tf-idf"] if there else metrics["variants"]["han"]
        score = {split: scores[split]["accuracy"] for split in ("validation", "test")}
        score = {split: value if there else value["mean"] for split, value in score.items()}
        use = f"On corpus use {used}: accuracy {score['validation']:.4f} on validation, {score['test']:.4f} on test"
        times = read_json(tmp_path / place / "latency.json")
        assert use in recommendations(metrics, times)[0]
        assert ("ms a document" in recommendations(metrics, times)[0]) == (not there)
        warnings = read_json(tmp_path / place / "verdicts.json")["warnings"]
        assert warnings == [f"flat {edge['flat'][0]}."]
        both = verdict["interval"]
        shown = f"[{both['low']:+.4f}, {both['high']:+.4f}]".replace("-", MINUS)
        head = (tmp_path / place / "report.html").read_text().partition('<section id="evidence">')[0]
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(terminal_table(metrics, report["verdicts"], times, warnings))
        printed = console.export_text().partition("corpus, test split")[0]
        for part in (shown, "supported", use, *warnings):
            assert part in head and part in printed, part
        assert head.index("✓ supported") < head.index(use) < head.index(warnings[0])


def test_a_tuning_warns_of_the_trials_that_it_chose(tmp_path, texts):
    experiment, records = texts
    tuning = {**experiment, "trials": {"reader": ["flat", "han"]}, "comparisons": [], "evaluate_on": "validation"}
    open_settings = {"flat": ["was not chosen"], "han": ["was chosen"]}
    report = evaluate_experiment(tuning, records, {}, tmp_path / "tune", untuned=open_settings)
    assert read_json(tmp_path / "tune/verdicts.json")["warnings"] == ["han was chosen."]
    # A grid is to choose from: nothing of it is recommended.
    assert recommendations(report["metrics"]) == []
    names = [f"han/learning_rate={rate}" for rate in (0.1, 0.2, 0.4)]
    tuned = {"han": {"chosen": names[-1], "trials": dict.fromkeys(names, 0.5)}}
    (line,) = warnings_of({"evaluated_on": "validation", "tuned": tuned}, {})
    assert line.startswith("han is best with the highest learning_rate tried")
    assert warnings_of({"evaluated_on": "test", "tuned": tuned}, {}) == []  # a grid of conditions


@pytest.mark.parametrize("word", ["supported", "refuted", "equivalent", "different", "inconclusive"])
def test_each_verdict_has_a_style_on_the_page_and_in_the_terminal(word):
    style, _ = WORDS[word]
    assert f".{style} {{" in (TEMPLATES / "style.css").read_text() and word in STYLES


def test_runs_that_do_not_fit_are_refused(tools, tmp_path, texts):
    experiment, records = texts
    with pytest.raises(InputError, match="no finished run"):
        evaluate_experiment(experiment, [], {}, tmp_path / "trial")
    with pytest.raises(InputError, match="given twice"):
        evaluate_experiment(experiment, [records[0], *records], {}, tmp_path / "trial")
    with pytest.raises(InputError, match="evaluate_on is 'train'"):
        evaluate_experiment({**experiment, "evaluate_on": "train"}, records, {}, tmp_path / "trial")
    other = tools["write_text_data"](tmp_path / "other", {"train": 3, "validation": 30, "test": 61}, list("abc"))
    moved = tools["write_record"](tmp_path / "more", "flat", "gru_flat", "corpus", other, 0, 1.0)
    kept = [record for record in records if record.variant == "han"]
    with pytest.raises(InputError, match="not measured on the same test items"):
        evaluate_experiment(experiment, [moved, *kept], {}, tmp_path / "trial")
    shutil.rmtree(records[0].run_directory)
    with pytest.raises(InputError, match="is missing"):
        evaluate_experiment(experiment, records, {}, tmp_path / "trial")


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("curves", "epoch", "validation_loss"),
        ("calibration", "confidence", "accuracy"),
        ("confusion", "predicted", "actual"),
        ("differences", "difference", "comparison"),
    ],
)
def test_dvc_draws_each_table_with_its_template(tmp_path, texts, name, x, y):
    experiment, records = texts
    evaluate_experiment(experiment, records, {}, tmp_path / "trial")
    with open(tmp_path / "trial" / f"{name}.csv", newline="") as file:
        rows = [{**row, "rev": "workspace"} for row in csv.DictReader(file)]
    template = str(TEMPLATES / "plots" / f"{name}.json")
    filled = VegaRenderer(rows, name, template=template, x=x, y=y, title=name).get_filled_template()
    picture = vl_convert.vegalite_to_svg(filled if isinstance(filled, str) else json.dumps(filled))
    # Something is drawn for each variant: its panel's name, or its half of the pair's.
    assert all(variant in picture for variant in ("han", "flat")) and picture.count("<path") > 10


@pytest.mark.parametrize("file", ["digests.json", "test.npy", "metrics.json", "latency.json"])
def test_an_evaluation_that_lacks_a_file_names_what_mends_it(tmp_path, texts, file):
    experiment, records = texts
    folder = records[0].evaluation_directory
    (folder / file).unlink()
    if file == "digests.json":
        metrics = read_json(folder / "metrics.json")
        metrics["test"]["accuracy"] = 0.99
        write_json(folder / "metrics.json", metrics)
    with pytest.raises(InputError, match=f"{folder}/.*: remove {folder} and evaluate the run again"):
        evaluate_experiment(experiment, records, {}, tmp_path / "report")
    assert not (tmp_path / "report").exists()
