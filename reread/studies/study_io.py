"""The evidence of a study: a folder that is complete or absent, with its figure drawn from its tables."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from cuda_ext.library import ReferenceWarning
from models.layers.cells import NAMES
from reread.evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION
from reread.planning.keys import this_machine
from reread.storage.arrays import Float64Array
from reread.storage.errors import InputError
from reread.storage.files import content_key, published_directory, write_json, write_text
from reread.storage.git import checkout
from reread.storage.ledger import open_test_split, version_of
from reread.verdicts.resampling import item_spread_of, mean_of
from reread.verdicts.rule import ONE_FIGURE, RULE, Comparison, Measured, Side, judge
from reread.verdicts.statistics import Interval

if TYPE_CHECKING:
    from reread.studies.load_runs import EvaluatedExperiment, TrainedNetworks

FOLDER = Path("results", "studies")
RESULTS = "results.json"
# Enough digits for any figure or comparison, and few enough for a readable diff.
DIGITS = "%.6g"
# The colour of each cell in every figure.
CELL_COLOURS = dict(zip(NAMES, (BLUE, ORANGE, SKY, GREY, INK, VERMILLION), strict=True))
# Of each seed the score of each item, float [m].
Scores = Sequence[Float64Array] | Float64Array


@dataclass(frozen=True)
class Findings:
    """The findings of a study.

    results: for results.json. ``claims``, where it judges any: each has ``claim``, ``verdict``, ``says``, ``measured``.
    tables: NAME.csv each.
    """

    results: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]


def destination(folder: Path, name: str, data: str | None) -> Path:
    """Return FOLDER/NAME, or FOLDER/NAME/DATA of a study of data that has another name than the study.

    InputError where something else than a study's evidence is there.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --to a folder")
    place = folder / name if data in (None, name) else folder / name / str(data)
    if place.exists() and not (place / RESULTS).is_file():
        raise InputError(f"{place} exists and is not a study's evidence: remove it or give another --to")
    return place


def publish(
    place: Path, findings: Findings, provenance: Mapping[str, Any], draw_figure: Callable[[Path, Path], None]
) -> dict[str, Any]:
    """Write results.json, NAME.csv of each table and figure.png to ``place``; return the content of results.json.

    The folder replaces an older one when it is complete.
    """
    results = {**findings.results, "provenance": dict(provenance)}
    with published_directory(place, replace=True) as folder:
        write_json(folder / RESULTS, results)
        for name, table in findings.tables.items():
            write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format=DIGITS))
        draw_figure(folder, folder / "figure.png")
    return results


def provenance(runs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the commit of the source, the machine, and the keys of what was read (``runs``)."""
    head, changed = checkout() or ("none", False)
    return {"commit": head, "uncommitted_changes": changed, "environment": this_machine(), **(runs or {})}


def reading(
    name: str, split: str | None, settings: Any, source: "TrainedNetworks | EvaluatedExperiment | None"
) -> contextlib.AbstractContextManager[Any]:
    """Open the split that a study reads rows of: the test split has an entry in the ledger, by settings and runs."""
    if source is None or split != "test":
        return contextlib.nullcontext()
    parts = {"settings": asdict(settings), **source.keys()}
    return open_test_split(f"study {name}", content_key(parts), version_of(source.description), parts)


@contextlib.contextmanager
def quiet_references(device: torch.device) -> Iterator[None]:
    """Silence the warning about missing kernels on a CPU for the block: the evidence names the device."""
    with warnings.catch_warnings():
        if device.type == "cpu":
            warnings.simplefilter("ignore", ReferenceWarning)
        yield


def shade(axes: Axes, x: Any, spans: Sequence[Interval], colour: str) -> None:
    """Shade the intervals ``spans`` at ``x``; one seed has none."""
    low, high = np.array([(span.low, span.high) for span in spans], np.float64).T
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def measured_items(seeds: Sequence[int], treatment: Scores, control: Scores, kind: str) -> Measured:
    """Measure a comparison of scores per item: float [m] for each seed on each side, of the same items.

    kind: reread.verdicts.rule.NETWORKS, or PAIRS of the same networks read in two ways. A side that scores exactly 1 on
    every item of every seed is flagged.
    """
    first, second = (Side([float(of_seed.mean()) for of_seed in side], list(seeds)) for side in (treatment, control))
    items = item_spread_of(
        [mean_of(of_seed) for of_seed in treatment], [mean_of(of_seed) for of_seed in control], len(treatment[0])
    )
    flags = [
        f"The {side} scores exactly 1 on every seed."
        for side, scores in (("treatment", treatment), ("control", control))
        if all((of_seed == 1).all() for of_seed in scores)
    ]
    return Measured(kind, first, second, items, flags)


def measured_seeds(seeds: Sequence[int], differences: Sequence[float]) -> Measured:
    """Measure a comparison that has one number per seed, its difference from a figure, and no items."""
    return Measured(ONE_FIGURE, Side(list(differences), list(seeds)), Side([0.0]))


def judged(
    comparisons: Sequence[Comparison],
    measured: Sequence[Measured],
    margin: float,
    alpha: float,
    says: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Judge all claims of a study together by reread.verdicts.rule.RULE, with Holm's correction over all of them.

    says: by comparison, what is printed in place of the rule's sentence.
    """
    return claims([verdict.as_dict() for verdict in judge(comparisons, measured, margin, alpha)], says)


def rule(margin: float, alpha: float) -> dict[str, Any]:
    """Return the rule of verdicts with its two numbers, for results.json."""
    return {"rule": RULE, "equivalence_margin": margin, "alpha": alpha}


def claims(verdicts: Sequence[Mapping[str, Any]], says: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the claims of a study from ``verdicts`` as JSON values, its own or an experiment's; says: as in
    ``judged``."""
    return [
        {
            "sentence": verdict["source"],
            "claim": verdict["claim"],
            "verdict": verdict["verdict"],
            "says": (says or {}).get(verdict["name"], verdict["sentence"]),
            "measured": dict(verdict),
        }
        for verdict in verdicts
    ]


def summary(results: Mapping[str, Any], place: Path) -> str:
    """Return what a study prints: the verdict of each claim, and the folder of its evidence."""
    lines = [f"{claim['verdict']}: {claim['claim']}\n    {claim['says']}" for claim in results.get("claims", [])]
    return "\n".join([*lines, f"evidence: {place}"])
