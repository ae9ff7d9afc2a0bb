"""The figures of each class of several labels."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from reread.evaluation import charts
from reread.evaluation.by_class import RATES, Subject, calibration, mean_curve, measure, worst_classes
from reread.evaluation.report import evaluate_experiment
from reread.goals import goal
from reread.goals.classification import auroc

CLASSES = [f"finding {number}" for number in range(14)]


def labels_and_scores(items, shares, seeds=2, generator=None):
    generator = generator or np.random.default_rng(0)
    labels = (generator.random((items, len(shares))) < shares).astype(np.uint8)
    noise = [generator.normal(size=labels.shape) for _ in range(seeds)]
    return labels, [(1 / (1 + np.exp(-(labels + of_seed)))).astype(np.float32) for of_seed in noise]


def subject(scores, labels, groups=None):
    """A variant on its own validation rows."""
    classes = [str(number) for number in range(labels.shape[1])]
    metrics = [
        goal("multi-label").measure({"validation": probabilities}, {"validation": labels}, classes)["validation"]
        for probabilities in scores
    ]
    about = {"classes": classes, "task": "multi-label"}
    return Subject("data", "variant", about, labels, groups, metrics, scores, metrics)


def class_aurocs(scores, labels, groups=None):
    return [scored["auroc"] for scored in measure(subject(scores, labels, groups)).by_class.values()]


def test_an_auroc_is_the_mean_over_seeds_inside_its_interval():
    labels, scores = labels_and_scores(120, [0.3, 0.5])
    for number, score in enumerate(class_aurocs(scores, labels)):
        values = [auroc(seed[:, number], labels[:, number].astype(bool)) for seed in scores]
        assert score.mean == pytest.approx(np.mean(values)) and 0 <= score.low < score.mean < score.high <= 1


def test_the_interval_of_one_seed_is_the_spread_over_resamples():
    """Against a bootstrap that draws rows one resample at a time."""
    labels, (scores,) = labels_and_scores(150, [0.4], seeds=1)
    (score,) = class_aurocs([scores], labels)
    generator = np.random.default_rng(1)
    values = []
    for _ in range(1500):
        rows = generator.integers(0, 150, 150)
        values.append(auroc(scores[rows, 0], labels[rows, 0].astype(bool)))
    assert (score.high - score.low) / 2 == pytest.approx(2.0 * np.std(values), rel=0.08)


def test_a_patient_s_copies_narrow_no_interval():
    labels, scores = labels_and_scores(60, [0.4], seeds=1)
    (alone,) = class_aurocs(scores, labels)
    copies = [np.repeat(array, 5, axis=0) for array in (labels, *scores)]
    (grouped,) = class_aurocs(copies[1:], copies[0], groups=np.repeat(np.arange(60), 5))
    (ungrouped,) = class_aurocs(copies[1:], copies[0])
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high))
    assert ungrouped.high - ungrouped.low < 0.7 * (alone.high - alone.low)


def test_a_class_of_one_patient_has_no_interval_and_one_that_is_absent_no_figure():
    labels, scores = labels_and_scores(40, [0.5, 0.0, 0.0])
    labels[:3, 2] = 1
    groups = np.repeat(np.arange(10), 4)
    _, absent, single = class_aurocs(scores, labels, groups)
    assert (absent.mean, absent.low) == (None, None)
    assert single.mean is not None and single.low is None


def test_each_metric_of_several_labels_has_an_interval_within_its_bounds():
    """Two seeds of which one is much worse: Student's interval over them alone would leave [0, 1]."""
    labels, (good, _) = labels_and_scores(80, [0.3, 0.4, 0.1])
    poor = np.random.default_rng(5).random(good.shape).astype(np.float32)
    variant = subject([good, poor], labels)
    measured = measure(variant)
    assert {"macro_auroc", "micro_f1", "macro_f1", "tuned_micro_f1", "tuned_macro_f1"} <= set(measured.whole)
    for name, score in measured.whole.items():
        assert score.mean == pytest.approx(np.mean([metrics[name] for metrics in variant.metrics]))
        assert score.low <= score.mean <= score.high and score.low >= 0
        assert score.high <= 1 or name == "loss"
    for scores in measured.by_class.values():
        assert 0 <= scores["f1"].low <= scores["f1"].mean <= scores["f1"].high <= 1


def test_the_interval_of_f1_of_one_seed_is_the_spread_over_resamples():
    labels, (scores,) = labels_and_scores(150, [0.4, 0.3], seeds=1)
    variant = subject([scores], labels)
    score = measure(variant).whole["tuned_micro_f1"]
    guess = scores >= variant.thresholds[0].overall
    generator, values = np.random.default_rng(1), []
    for _ in range(1500):
        rows = generator.integers(0, 150, 150)
        hits, total = (guess & labels.astype(bool))[rows].sum(), guess[rows].sum() + labels[rows].sum()
        values.append(2 * hits / total)
    assert (score.high - score.low) / 2 == pytest.approx(2.0 * np.std(values), rel=0.08)


def test_the_area_under_the_mean_curve_is_the_mean_auroc():
    labels, scores = labels_and_scores(4000, [0.3])
    positive = labels[:, 0].astype(bool)
    curve = mean_curve([probabilities[:, 0] for probabilities in scores], positive)
    assert curve[-1] == 1 and (np.diff(curve) >= 0).all()
    area = float(np.trapezoid(curve, RATES))
    assert area == pytest.approx(np.mean([auroc(probabilities[:, 0], positive) for probabilities in scores]), abs=2e-3)


def test_calibration_counts_every_answer_once():
    bins = calibration([np.array([0.05, 0.95, 1.0]), np.array([0.0, 0.15, 0.91])], np.array([False, True, True]))
    assert bins["count"].tolist() == [2, 1, *[0] * 6, 0, 3]
    assert bins["share"][[0, 1, 9]].tolist() == [0, 1, 1] and bins["confidence"][9] == pytest.approx(2.86 / 3)


def test_of_ninety_classes_the_worst_ten_are_drawn_and_the_table_has_all():
    labels = [f"topic {number}" for number in range(90)]
    generator = np.random.default_rng(0)
    f1 = dict(zip(labels, generator.random(90), strict=True))
    scores = {name: {"scores": {"han": {"f1": Mean(f1[name]), "auroc": Mean(0.5)}}} for name in labels}
    worst = worst_classes({"classes": scores, "metrics": ["auroc", "f1"]})
    assert worst == sorted(labels, key=f1.__getitem__)[:10]
    few = dict(list(scores.items())[:14])
    assert worst_classes({"classes": few, "metrics": ["auroc", "f1"]}) == labels[:14]


@dataclass
class Mean:
    mean: float


def test_confusions_of_ninety_classes_are_those_of_the_worst_ten():
    """Class k of 90 is predicted wrongly k times of 100, as class 0."""
    rows = [
        {"data": "d", "variant": "v", "label": "", "actual": str(k), "predicted": str(p), "count": count}
        for k in range(90)
        for p, count in ((k, 100 - k), *(((0, k),) if k else ()))
    ]
    values = charts.confusion(pd.DataFrame(rows))["data"]["values"]
    assert {row["actual"] for row in values} == {str(k) for k in range(80, 90)}
    assert {row["predicted"] for row in values} == {*(str(k) for k in range(80, 90)), "all others"}
    worst = {row["predicted"]: row["share"] for row in values if row["actual"] == "89"}
    assert worst == {"89": 0.11, "all others": 0.89}


def test_a_label_that_no_row_has_is_drawn_without_a_recall():
    counts = {"here": {"yes": (3, 1), "no": (0, 4)}, "absent": {"no": (6, 2)}}  # found, not found
    rows = [
        {"data": "d", "variant": "v", "label": label, "actual": actual, "predicted": predicted, "count": count}
        for label, actuals in counts.items()
        for actual in ("no", "yes")
        for predicted, count in zip(
            (actual, "yes" if actual == "no" else "no"), actuals.get(actual, (0, 0)), strict=True
        )
    ]
    values = charts.confusion(pd.DataFrame(rows))["data"]["values"]
    shares = {(row["actual"], row["predicted"]): row["share"] for row in values}
    assert shares == {("here", "specificity"): 0, ("here", "recall"): 0.75, ("absent", "specificity"): 0.75}


def test_the_report_has_a_section_of_classes(tools, tmp_path):
    groups = np.arange(124) // 2
    data = tools["write_image_data"](
        tmp_path / "prepared/chest", {"train": 4, "validation": 40, "test": 80}, CLASSES, "multi-label", groups=groups
    )
    variants = {name: {"model": "densenet", "data": "chest"} for name in ("relu", "swish")}
    records = [
        tools["write_record"](tmp_path / "runs", name, "densenet", "chest", data, seed, skill)
        for name, skill in (("relu", 0.5), ("swish", 2.0))
        for seed in (1, 2, 3)
    ]
    pair = {"claim": "c", "source": "s", "treatment": "swish", "control": "relu", "metric": "macro_auroc", "name": "x"}
    experiment = {"variants": variants, "comparisons": [pair], "equivalence_margin": 0.02, "evaluate_on": "test"}
    report = evaluate_experiment(experiment, records, {}, tmp_path / "report")
    assert report["verdicts"][0]["metric"] == "macro_auroc"
    table = pd.read_csv(tmp_path / "report/classes.csv")
    assert len(table) == 2 * 2 * 14 and (table["positive_groups"] <= 40).all() and table["low"].notna().all()
    assert set(table["metric"]) == {"auroc", "f1"}
    whole = pd.read_csv(tmp_path / "report/intervals.csv")
    assert {"tuned_micro_f1", "macro_auroc"} <= set(whole["metric"]) and (whole["low"] >= 0).all()
    page = (tmp_path / "report/report.html").read_text()
    assert 'id="classes"' in page and "finding 13" in page and "ROC curves" in page
    assert 'id="chart-roc-1"' in page and 'id="chart-class-calibration-1"' in page
    assert {"roc.csv", "class-calibration.csv"} <= {path.name for path in (tmp_path / "report").iterdir()}
