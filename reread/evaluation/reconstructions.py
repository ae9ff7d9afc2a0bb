"""A page of what a capsule network's decoder draws: rows of the test split beside their reconstructions.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, figures 3, 4 and 5. Right and wrong rows
are decoded from the capsules of the classes that were predicted. Below, each dimension of one capsule is changed by
-0.25 to 0.25. Of rows with several labels each capsule is decoded alone, and has a colour of its own.

Shape legend: n rows, L labels of a row, H x W pixels, K classes, D dimensions of a capsule.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

import models
from reread.batches.collation import inputs
from reread.evaluation.page import render
from reread.evaluation.records import RunRecord
from reread.kinds import Explanation
from reread.runtime.determinism import threads
from reread.storage.files import write_text
from reread.storage.prepared import Prepared
from reread.storage.run_folder import WEIGHTS, RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = "reconstructions.html"
SHOWN = 10
CHANGES = np.linspace(-0.25, 0.25, 11)
# Two capsules are drawn in red and green; more share the blue plane.
PLANES = 3


def explain(records: Sequence[RunRecord], best_seeds: Mapping[str, int], folder: Path) -> Explanation | None:
    """Write the page of the first variant with a decoder, at its best seed."""
    for record in records:
        if record.seed == best_seeds[record.variant] and has_reconstructions(record.run_directory, record.prepared):
            return write_page(record, folder)
    return None


def write_page(record: RunRecord, folder: Path) -> Explanation:
    """Write the page of a run's reconstructions into ``folder``."""
    title = f"What {record.variant} draws of its capsules (seed {record.seed})"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "reconstructions.png"
        write_reconstructions(record.run_directory, record.prepared, record.probabilities("test"), path)
        page = render("reconstructions.html", title=title, data=record.prepared.description["name"], picture=path)
    write_text(folder / PAGE, page)
    return Explanation(PAGE, title, "images of the test split beside what the decoder makes of their capsules")


def has_reconstructions(run_directory: Path, prepared: Prepared) -> bool:
    """Return whether the network has a decoder, its weights are still there, and the images are grey."""
    if prepared.kind != "image" or prepared.arrays["images"].shape[3] != 1:
        return False
    if not (run_directory / WEIGHTS).is_file():
        return False
    job = RunFolder(run_directory).job
    return getattr(models.settings(job["model"], job["network"]), "reconstruction", False)


def write_reconstructions(run_directory: Path, prepared: Prepared, probabilities: np.ndarray, path: Path) -> None:
    """Draw the picture. ``probabilities``: the run's of the test split, float32 [rows, K]."""
    from reread.evaluation.pictures import picture  # matplotlib takes most of a second to import

    rows = prepared.rows("test")
    labels = np.array(prepared.labels[rows])
    truth = labels[:, None] == np.arange(len(prepared.classes)) if labels.ndim == 1 else labels.astype(bool)
    guess = predicted_labels(probabilities, truth)
    right = (guess == truth).all(axis=1)
    groups = {"right": np.flatnonzero(right)[:SHOWN], "wrong": np.flatnonzero(~right)[:SHOWN]}
    with threads(1):
        network = models.load(run_directory, prepared.description)
        shown = {name: drawn(network, prepared, rows[own], guess[own]) for name, own in groups.items() if len(own)}
        first = groups["right"][:1] if right.any() else np.array([0])
        grid = changed(network, prepared, rows[first], guess[first])
    height, width = grid.shape[2:]
    with picture(path, 11, 1 + 1.9 * len(shown) + 0.42 * len(grid)) as figure:
        axes = figure.subplots(len(shown) + 1, 1, height_ratios=[2] * len(shown) + [0.5 * len(grid)], squeeze=False)
        for (name, images), axis in zip(shown.items(), axes[:-1, 0], strict=True):
            own = groups[name]
            _show(axis, images, f"Rows that were predicted {name}: above the image, below its reconstruction")
            said = [_named(guess[row], prepared.classes) for row in own]
            if name == "wrong":
                said = [
                    f"{predicted},\nnot {_named(truth[row], prepared.classes)}"
                    for predicted, row in zip(said, own, strict=True)
                ]
            axis.set_xticks((np.arange(len(own)) + 0.5) * width, said)
        _show(axes[-1, 0], grid, "One capsule, each of its dimensions changed by -0.25 to 0.25")
        axes[-1, 0].set_xticks((np.arange(len(CHANGES)) + 0.5) * width, [f"{change:+.2f}" for change in CHANGES])
        axes[-1, 0].set_yticks(
            (np.arange(len(grid)) + 0.5) * height, [str(dimension + 1) for dimension in range(len(grid))]
        )


def predicted_labels(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the most probable classes of each row, as many as it has labels (``truth``, bool [n, K]): bool [n, K]."""
    rank = np.argsort(np.argsort(-probabilities, axis=1, kind="stable"), axis=1, kind="stable")
    return rank < truth.sum(axis=1, keepdims=True)


@torch.no_grad()
def drawn(network: Any, prepared: Prepared, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return images and their reconstructions from the capsules of ``classes`` (bool [n, K]): float [2, n, H, W, 3]."""
    capsules = network.capsules(*inputs(prepared, rows))
    size = prepared.arrays["images"].shape[1:3]
    pictures = np.zeros((2, len(rows), *size, PLANES))
    pictures[0] = prepared.arrays["images"][rows] / 255
    for row, own in enumerate(classes):
        numbers = np.flatnonzero(own)
        masks = functional.one_hot(torch.from_numpy(numbers), classes.shape[1]).float()
        pixels = network.reconstruct(capsules[row].expand(len(numbers), -1, -1), masks).numpy()
        for place, reconstruction in enumerate(pixels.reshape(-1, *size)):
            planes = range(PLANES) if len(numbers) == 1 else [min(place, PLANES - 1)]
            for plane in planes:
                np.maximum(pictures[1, row, ..., plane], reconstruction, out=pictures[1, row, ..., plane])
    return pictures


@torch.no_grad()
def changed(network: Any, prepared: Prepared, row: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the reconstructions of one row (int [1]) with each dimension changed, float [D, len(CHANGES), H, W]."""
    capsules = network.capsules(*inputs(prepared, row))
    number = int(np.flatnonzero(classes[0])[0])
    dimensions = capsules.shape[2]
    every = capsules.repeat(dimensions * len(CHANGES), 1, 1).unflatten(0, (dimensions, len(CHANGES)))
    for dimension in range(dimensions):
        every[dimension, :, number, dimension] += torch.from_numpy(CHANGES).float()
    mask = functional.one_hot(torch.tensor([number]), capsules.shape[1]).float().expand(every[..., 0, 0].numel(), -1)
    pixels = network.reconstruct(every.flatten(0, 1), mask)
    return pixels.view(dimensions, len(CHANGES), *prepared.arrays["images"].shape[1:3]).numpy()


def _show(axes: "Axes", images: np.ndarray, title: str) -> None:
    """Draw images [rows, columns, H, W] or [rows, columns, H, W, 3] as one."""
    joined = np.concatenate([np.concatenate(list(row), axis=1) for row in images])
    axes.imshow(joined, cmap="gray", vmin=0, vmax=1)
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def _named(classes: np.ndarray, names: list[str]) -> str:
    return " and ".join(names[number] for number in np.flatnonzero(classes))
