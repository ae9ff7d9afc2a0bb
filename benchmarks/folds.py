"""Error rate of verdicts from cross-validation, by simulation.

nice python -m benchmarks.folds --draws 1000 --json benchmarks/results/2026-11-27-folds.json

Each draw is a new data set of two classes, whose features are in two halves of one distribution. The treatment reads
one half and the control the other, so that over data sets neither is better. Both are least squares, on the training
rows or on a bootstrap of them, which is the chance of a seed beside its folds. Folds and verdicts come from the
functions of an experiment. A verdict that names one as better is wrong. docs/tables.py makes the table of
docs/verdicts.md from the file.

Shape legend: N rows, n seeds, K folds, F features of each half.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.verdicts import ALPHA, COMPARISON, NARROW
from reread.preprocessing.folds import Fold, assign, folds_of
from reread.storage.errors import InputError, command
from reread.storage.files import write_json
from reread.verdicts.resampling import item_spread_of, mean_of
from reread.verdicts.rule import NETWORKS, Evidence, Measured, Side

# Rows, folds, seeds, features of each half, and whether training rows are drawn by bootstrap.
DESIGNS = (
    (60, 3, 6, 20, True), (60, 5, 6, 5, True), (60, 5, 6, 20, True), (60, 5, 6, 20, False), (60, 10, 6, 20, True),
    (60, 10, 6, 5, False), (150, 5, 6, 20, True), (150, 5, 10, 20, True), (150, 10, 6, 20, True), (400, 5, 6, 20, True),
)  # fmt: skip
RIDGE, SHIFT, RESAMPLES = 1.0, 0.6, 500


def least_squares(features: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the weights of a ridge regression of classes 0 and 1, float64 [F + 1]."""
    with_constant = np.column_stack([features, np.ones(len(features))])
    gram = with_constant.T @ with_constant + RIDGE * np.eye(with_constant.shape[1])
    weights: np.ndarray = np.linalg.solve(gram, with_constant.T @ (2 * classes - 1))
    return weights


def is_right(weights: np.ndarray, features: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return whether each row's class is predicted, bool [rows]."""
    right: np.ndarray = (features @ weights[:-1] + weights[-1] > 0) == classes
    return right


def cross_validated(
    halves: list[np.ndarray], classes: np.ndarray, folds: int, seeds: int, bootstrap: bool, rng: np.random.Generator
) -> np.ndarray:
    """Return whether each seed of each side is right on each row when its fold is tested, bool [2, n, N]."""
    right = np.zeros((len(halves), seeds, len(classes)), bool)
    for seed in range(seeds):
        fold_of = assign(classes, np.arange(len(classes)), folds, int(rng.integers(2**32)))
        for fold in folds_of(folds, seed):
            split = fold.split(fold_of)
            train, test = np.flatnonzero(split == 0), np.flatnonzero(split == 2)
            for side, features in enumerate(halves):
                drawn = rng.choice(train, len(train)) if bootstrap else train
                weights = least_squares(features[drawn], classes[drawn])
                right[side, seed, test] = is_right(weights, features[test], classes[test])
    return right


def measured_errors(rows: int, folds: int, seeds: int, features: int, bootstrap: bool, draws: int) -> dict[str, Any]:
    """Return how often a side is called better: by the analysis over seeds alone, and by the rule without a correction,
    with that of one fold's rows of test, and with that of the rule, which is of all rows that a seed tests."""
    rng = np.random.default_rng([rows, folds, seeds, features, bootstrap])
    split = Fold(folds, 0, 1).split(np.arange(rows) % folds)
    sizes = np.bincount(split, minlength=3)
    shares = {"uncorrected": 0.0, "of_a_fold": sizes[2] / sizes[0], "corrected": rows / sizes[0]}
    wrong = dict.fromkeys(("seeds_alone", *shares), 0)
    for _ in range(draws):
        classes = np.arange(rows) % 2
        halves = [rng.normal(size=(rows, features)) for _ in range(2)]
        for half in halves:
            half[:, 0] += SHIFT * (2 * classes - 1)
        right = cross_validated(halves, classes, folds, seeds, bootstrap, rng)
        first, second = ([mean_of(seed) for seed in side] for side in right)
        items = item_spread_of(first, second, rows, RESAMPLES)
        treatment, control = (Side(side.mean(axis=1).tolist(), range(seeds)) for side in right)
        for name, share in shares.items():
            measured = Measured(NETWORKS, treatment, control, items, test_to_train=float(share))
            evidence = Evidence(COMPARISON, measured, NARROW)
            wrong[name] += evidence.p < ALPHA
        wrong["seeds_alone"] += evidence.two_sided(evidence.over_seeds.one_sided_p()) < ALPHA
    design = {"rows": rows, "folds": folds, "seeds": seeds, "features": features, "bootstrap": bootstrap}
    return design | {name: int(count) / draws for name, count in wrong.items()}


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folds", description="Simulate cross-validation.")
    parser.add_argument("--draws", type=int, default=400, help="data sets of each design")
    parser.add_argument("--json", type=Path, required=True, help="the file of figures")
    arguments = parser.parse_args()
    if arguments.draws < 1:
        raise InputError("--draws: give a positive number")
    results = []
    for design in DESIGNS:
        results.append(measured_errors(*design, arguments.draws))
        print(results[-1], flush=True)
    write_json(arguments.json, {"draws": arguments.draws, "alpha": ALPHA, "designs": results})


if __name__ == "__main__":
    main()
