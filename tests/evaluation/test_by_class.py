"""The figures of each class of several labels."""

import numpy as np
import pandas as pd
import pytest

from evaluation.by_class import RATES, calibration, class_aurocs, has_class_figures, mean_curve
from evaluation.metrics import auroc
from evaluation.pictures import calibration_by_class, roc_by_class
from evaluation.report import evaluate_experiment

CLASSES = [f"finding {number}" for number in range(14)]


def labels_and_scores(items, shares, seeds=2, generator=None):
    generator = generator or np.random.default_rng(0)
    labels = (generator.random((items, len(shares))) < shares).astype(np.uint8)
    noise = [generator.normal(size=labels.shape) for _ in range(seeds)]
    return labels, [(1 / (1 + np.exp(-(labels + one)))).astype(np.float32) for one in noise]


def test_an_auroc_is_the_mean_over_seeds_inside_its_interval():
    labels, scores = labels_and_scores(120, [0.3, 0.5])
    for number, one in enumerate(class_aurocs(scores, labels)):
        values = [auroc(seed[:, number], labels[:, number].astype(bool)) for seed in scores]
        assert one.mean == pytest.approx(np.mean(values)) and 0 <= one.low < one.mean < one.high <= 1
        assert one.positives == one.positive_groups == labels[:, number].sum()


def test_the_interval_of_one_seed_is_the_spread_over_resamples():
    """Against a bootstrap that draws rows one resample at a time."""
    labels, (scores,) = labels_and_scores(150, [0.4], seeds=1)
    (found,) = class_aurocs([scores], labels)
    generator = np.random.default_rng(1)
    values = []
    for _ in range(1500):
        rows = generator.integers(0, 150, 150)
        values.append(auroc(scores[rows, 0], labels[rows, 0].astype(bool)))
    assert (found.high - found.low) / 2 == pytest.approx(2.0 * np.std(values), rel=0.08)


def test_a_patient_s_copies_narrow_no_interval():
    labels, scores = labels_and_scores(60, [0.4], seeds=1)
    (alone,) = class_aurocs(scores, labels)
    copies = [np.repeat(one, 5, axis=0) for one in (labels, *scores)]
    (grouped,) = class_aurocs(copies[1:], copies[0], groups=np.repeat(np.arange(60), 5))
    (ungrouped,) = class_aurocs(copies[1:], copies[0])
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high))
    assert ungrouped.high - ungrouped.low < 0.7 * (alone.high - alone.low)
    assert (grouped.positives, grouped.positive_groups) == (5 * alone.positives, alone.positives)


def test_a_class_of_one_patient_has_no_interval_and_one_that_is_absent_no_figure():
    labels, scores = labels_and_scores(40, [0.5, 0.0, 0.0])
    labels[:3, 2] = 1
    groups = np.repeat(np.arange(10), 4)
    _, absent, single = class_aurocs(scores, labels, groups)
    assert (absent.mean, absent.low, absent.positives) == (None, None, 0)
    assert single.mean is not None and single.low is None and (single.positives, single.positive_groups) == (3, 1)


def test_the_area_under_the_mean_curve_is_the_mean_auroc():
    labels, scores = labels_and_scores(4000, [0.3])
    positive = labels[:, 0].astype(bool)
    curve = mean_curve([one[:, 0] for one in scores], positive)
    assert curve[-1] == 1 and (np.diff(curve) >= 0).all()
    area = float(np.trapezoid(curve, RATES))
    assert area == pytest.approx(np.mean([auroc(one[:, 0], positive) for one in scores]), abs=2e-3)


def test_calibration_counts_every_answer_once():
    found = calibration([np.array([0.05, 0.95, 1.0]), np.array([0.0, 0.15, 0.91])], np.array([False, True, True]))
    assert found["count"].tolist() == [2, 1, *[0] * 6, 0, 3]
    assert found["share"][[0, 1, 9]].tolist() == [0, 1, 1] and found["confidence"][9] == pytest.approx(2.86 / 3)


def test_fourteen_classes_have_panels_that_can_be_read(tmp_path):
    points = [(label, name) for label in CLASSES for name in ("one", "other")]
    roc = pd.DataFrame(
        [{"label": label, "variant": name, "false_positive_rate": x, "true_positive_rate": x**0.5}
         for label, name in points for x in RATES[::10]]
    )  # fmt: skip
    bins = pd.DataFrame(
        [
            {"label": label, "variant": name, "confidence": x, "share": x, "count": 30}
            for label, name in points
            for x in (0.1, 0.9)
        ]
    )
    for table, draw in ((roc, roc_by_class), (bins, calibration_by_class)):
        draw(table, tmp_path / "one.png")
        draw(table, tmp_path / "again.png")
        assert (tmp_path / "one.png").read_bytes() == (tmp_path / "again.png").read_bytes()
        assert (tmp_path / "one.png").stat().st_size > 20_000


def test_many_classes_have_no_figures_of_their_own():
    assert has_class_figures({"task": "multi-label", "classes": CLASSES})
    assert not has_class_figures({"task": "multi-label", "classes": list(range(80))})
    assert not has_class_figures({"task": "single-label", "classes": CLASSES})


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
    found = evaluate_experiment(experiment, records, {}, tmp_path / "report")
    assert found["verdicts"][0]["metric"] == "macro_auroc"
    table = pd.read_csv(tmp_path / "report/auroc.csv")
    assert len(table) == 2 * 14 and (table["positive_groups"] <= 40).all() and table["low"].notna().all()
    page = (tmp_path / "report/report.html").read_text()
    assert 'id="classes"' in page and "finding 13" in page and "ROC curves" in page
    assert {"roc-chest.png", "class-calibration-chest.png", "roc.csv", "class-calibration.csv"} <= {
        path.name for path in (tmp_path / "report").iterdir()
    }
