"""Class activation maps: where in an image a network sees a class, and whether a radiologist's box is there.

Source: Zhou et al., Learning Deep Features for Discriminative Localization, CVPR 2016. A network that ends in the mean
over pixels of its last feature map F and a linear classifier with weights W and biases b has the logits
W mean(F) + b = mean(W F) + b: the map W F of a class shows what each place adds, and its mean is the logit less b.

Where boxes are known, a map is scored by the pointing game (Zhang et al., Top-down Neural Attention by Excitation
Backprop, ECCV 2016: is its highest point in a box of its class?) and by the intersection over union of the boxes with
the places above the middle of its range. Chance is the share of the image that boxes cover: what a random point hits.

Shape legend: N images of H x W pixels, C channels and h x w places of the last feature map, K classes, B boxes.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from models.objectives import scores as logits_of
from reread.batches.collation import inputs
from reread.evaluation.page import embedded, render
from reread.evaluation.records import RunRecord
from reread.goals.classification import one_hot
from reread.kinds import Explanation
from reread.runtime.determinism import threads
from reread.storage.files import write_text
from reread.storage.prepared import Prepared
from reread.storage.run_folder import WEIGHTS

PAGE = "class-activation.html"
# On smaller images a person sees nothing.
SMALLEST = 16
ROWS_AT_A_TIME = 16
MOST_BOXED, MOST_SHOWN = 8, 20
# The share of a map's range from which on a place belongs to its region.
THRESHOLD = 0.5


@dataclass(frozen=True)
class Located:
    """A map of one class of one image that has boxes of it.

    inside: whether its highest point is in a box; chance: the share of the image that boxes cover; overlap: the
    intersection over union of boxes and region.
    """

    row: int
    label: int
    inside: bool
    chance: float
    overlap: float


@torch.no_grad()
def has_maps(network: nn.Module, images: Tensor) -> bool:
    """Return whether a network ends in the mean over pixels of its ``body`` and a linear ``classifier``.

    images: some that it reads, by which its logits are compared with those of its parts.
    """
    body, classifier = getattr(network, "body", None), getattr(network, "classifier", None)
    if not isinstance(body, nn.Module) or not isinstance(classifier, nn.Linear) or body(images).ndim != 4:
        return False
    return torch.allclose(class_activation_maps(network, images)[1], logits_of(network(images)), atol=1e-4)


@torch.no_grad()
def class_activation_maps(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """images float [N, C, H, W] as the network reads them -> its maps [N, K, h, w] and logits [N, K]."""
    body, classifier = network.get_submodule("body"), network.get_submodule("classifier")
    features = body(images)
    maps = torch.einsum("kc,nchw->nkhw", classifier.get_parameter("weight"), features)
    return maps, classifier(features.mean(dim=(2, 3)))


def explain(records: Sequence[RunRecord], best_seeds: Mapping[str, int], folder: Path) -> Explanation | None:
    """Write the page of the class activation maps of the first variant that has some, at its best seed."""
    for record in records:
        if record.seed == best_seeds[record.variant] and (network := network_with_maps(record)):
            return write_page(record, network, folder)
    return None


def network_with_maps(record: RunRecord) -> nn.Module | None:
    """Return a run's network where it has maps, its weights are there, and its images are large enough to see."""
    prepared = record.prepared
    _, height, width, _ = prepared.arrays["images"].shape
    if min(height, width) < SMALLEST or not (record.run_directory / WEIGHTS).is_file():
        return None
    network = models.load(record.run_directory, prepared.description)
    return network if has_maps(network, *inputs(prepared, prepared.rows("test")[:2])) else None


def write_page(record: RunRecord, network: nn.Module, folder: Path) -> Explanation:
    """Write the page of a run's class activation maps into ``folder``."""
    prepared = record.prepared
    title = f"Where {record.variant} sees a class (seed {record.seed})"
    probabilities = record.probabilities("test")
    with threads(1), tempfile.TemporaryDirectory() as scratch:
        located = locate(network, prepared, "test")
        examples = [
            draw_example(network, prepared, row, label, float(probabilities[row - prepared.rows("test")[0], label]),
                         Path(scratch) / "example.png")
            for row, label in chosen(prepared, "test", probabilities, located)
        ]  # fmt: skip
    page = render(
        "class-activation.html",
        title=title,
        data=prepared.description["name"],
        examples=examples,
        scores=mean_scores(located, prepared.classes),
        threshold=THRESHOLD,
    )
    write_text(folder / PAGE, page)
    return Explanation(PAGE, title, "images of the test split with what each place adds to a class's score")


def boxes_of(prepared: Prepared, split: str) -> dict[tuple[int, int], np.ndarray]:
    """Return of each (row, class) of a split its boxes: left, top, width and height as shares, float64 [B, 4]."""
    boxes = prepared.arrays.get("boxes")
    first, last = prepared.description["splits"][split]
    grouped: dict[tuple[int, int], list[np.ndarray]] = {}
    for box in [] if boxes is None else boxes:
        if first <= box[0] < last:
            grouped.setdefault((int(box[0]), int(box[1])), []).append(box[2:])
    return {key: np.array(of_key) for key, of_key in grouped.items()}


def locate(network: nn.Module, prepared: Prepared, split: str) -> list[Located]:
    """Score the network's maps by all boxes of a split."""
    boxes = boxes_of(prepared, split)
    rows = np.array(sorted({row for row, _ in boxes}), np.int64)
    sides = prepared.arrays["images"].shape[1:3]
    located = []
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        some = rows[start : start + ROWS_AT_A_TIME]
        maps = enlarged(class_activation_maps(network, *inputs(prepared, some))[0], sides)
        for place, row in enumerate(some.tolist()):
            labels = [label for of_row, label in boxes if of_row == row]
            located += [score(maps[place, label], boxes[row, label], row, label) for label in labels]
    return located


def enlarged(maps: Tensor, sides: Sequence[int]) -> np.ndarray:
    """Maps [N, K, h, w] at the image's size, float [N, K, H, W]: linear between the middles of places."""
    return functional.interpolate(maps, size=tuple(sides), mode="bilinear", align_corners=False).numpy()


def covered(boxes: np.ndarray, sides: Sequence[int]) -> np.ndarray:
    """Return the pixels whose middle is in one of ``boxes`` (shares, [B, 4]), bool [H, W]."""
    height, width = sides
    across, down = (np.arange(width) + 0.5) / width, ((np.arange(height) + 0.5) / height)[:, None]
    inside = np.zeros((height, width), bool)
    for left, top, wide, high in boxes:
        inside |= (across >= left) & (across <= left + wide) & (down >= top) & (down <= top + high)
    return inside


def score(activation: np.ndarray, boxes: np.ndarray, row: int, label: int) -> Located:
    """Compare a map [H, W] with the boxes of its class, shares [B, 4]."""
    inside = covered(boxes, activation.shape)
    region = activation >= activation.min() + THRESHOLD * (activation.max() - activation.min())
    overlap = float((inside & region).sum() / (inside | region).sum())
    hit = bool(inside[np.unravel_index(activation.argmax(), activation.shape)])
    return Located(row, label, hit, float(inside.mean()), overlap)


def mean_scores(located: Sequence[Located], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mean scores of each class that has boxes and, last, of all."""
    groups = {
        name: [location for location in located if location.label == number] for number, name in enumerate(classes)
    }
    return [
        {
            "label": name,
            "images": len(group),
            "pointing": float(np.mean([location.inside for location in group])),
            "chance": float(np.mean([location.chance for location in group])),
            "overlap": float(np.mean([location.overlap for location in group])),
        }
        for name, group in {**groups, "all": list(located)}.items()
        if group
    ]


def chosen(
    prepared: Prepared, split: str, probabilities: np.ndarray, located: Sequence[Located]
) -> list[tuple[int, int]]:
    """Return the (row, class) to show: some with boxes, then of each class the row that has it most likely."""
    rows = prepared.rows(split)
    truth = one_hot(prepared.labels[rows], len(prepared.classes))
    shown = [(location.row, location.label) for location in located][:MOST_BOXED]
    for label in range(truth.shape[1]):
        having = np.flatnonzero(truth[:, label])
        if len(having):
            shown.append((int(rows[having[probabilities[having, label].argmax()]]), label))
    return list(dict.fromkeys(shown))[:MOST_SHOWN]


def draw_example(
    network: nn.Module, prepared: Prepared, row: int, label: int, probability: float, path: Path
) -> dict[str, Any]:
    """Draw an image beside its map, with boxes of the class; return what the page says of it."""
    # Matplotlib takes most of a second to import, and most networks have no maps.
    from matplotlib.patches import Rectangle

    from reread.evaluation.pictures import SKY, picture

    pixels = np.asarray(prepared.arrays["images"][row])
    sides = pixels.shape[:2]
    maps, _ = class_activation_maps(network, *inputs(prepared, np.array([row])))
    activation = enlarged(maps[:, label : label + 1], sides)[0, 0]
    boxes = boxes_of(prepared, "test").get((row, label), np.empty((0, 4)))
    with picture(path, 4.6, 2.35) as figure:
        for axes, overlaid in zip(figure.subplots(1, 2), (False, True), strict=True):
            axes.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=255)
            if overlaid:
                axes.imshow(activation, cmap="inferno", alpha=0.5)
            for left, top, wide, high in boxes * np.array([sides[1], sides[0], sides[1], sides[0]]):
                corner = (left - 0.5, top - 0.5)
                axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=SKY, linewidth=1.4))
            axes.set_axis_off()
    truth = one_hot(prepared.labels[row : row + 1], len(prepared.classes))[0]
    return {
        "label": prepared.classes[label],
        "probability": probability,
        "places": " x ".join(map(str, maps.shape[2:])),
        "boxes": len(boxes),
        "true": [prepared.classes[number] for number in np.flatnonzero(truth)],
        "picture": embedded(path),
    }
