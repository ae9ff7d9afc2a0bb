"""Checks of a network's code before its first epoch: an error in it is one line, and not a wrong verdict.

scores     they are [n, K] and numbers, and those of a row are the same again and without the rest of its batch
padding    an output may not depend on how far a batch is padded
gradient   every weight of the debug size gets a gradient of the loss
export     the debug size can be exported for any batch size, as serving needs

They run on the CPU in evaluation mode, on a few rows of the training split. What passed is kept by the digest of the
network's source, settings and torch's version, so that a network is checked once. Random numbers are drawn from a
generator state of their own: the weights of a run are the same with the checks and without.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from cuda_ext.errors import KernelError
from models.objectives import Objective, make_objective, scores
from reread import kinds
from reread.batches import collation
from reread.goals import beyond_labels
from reread.storage.arrays import Int64Array
from reread.storage.errors import InputError
from reread.storage.files import content_key, write_json
from reread.storage.numeric import numeric_digest
from reread.storage.prepared import Prepared
from reread.storage.source import ROOT

ROWS = 8
# torch.export writes a recurrent network down step by step: the shortest rows take a tenth of the time.
ROWS_OF_EXPORT = 3
TOLERANCE = 1e-4  # of a score: float32 sums of another length differ by about 1e-6
PASSED = ROOT / ".cache" / "checked-networks"


def check_network(
    model: str, settings: Mapping[str, Any], objective: Mapping[str, Any], prepared: Prepared, passed: Path = PASSED
) -> None:
    """Check the code of network ``model`` with ``settings`` on rows of ``prepared``; InputError names what fails.

    objective: the tagged settings of the training loss; passed: a folder that keeps what was checked, if it can be
    written.
    """
    key = content_key(
        {
            "source": models.network_source(model, settings),
            "check": numeric_digest([__name__, f"models.objectives.{objective['name']}"]),
            "network": dict(settings),
            "debug": dataclasses.asdict(models.debug(model)),
            "objective": dict(objective),
            "kind": prepared.kind,
            "shapes": shapes(prepared),
            "torch": torch.__version__,
        }
    )
    mark = passed / f"{key}.json"
    if mark.is_file():
        return
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Any state will do, as long as it is always the same.
        torch.manual_seed(0)
        rows = few_rows(prepared)
        network = models.build(model, settings, prepared.description).eval()
        refuse_wrong_scores(network, model, prepared, rows)
        refuse_padding(network, model, prepared, rows)
        debug = models.build(model, dataclasses.asdict(models.debug(model)), prepared.description).eval()
        inputs = collation.inputs(prepared, rows)
        loss = make_objective(objective, prepared.description, prepared.labels[prepared.rows("train")])
        refuse_no_gradient(debug, model, inputs, collation.labels(prepared, rows), loss)
        refuse_no_export(debug, model, collation.inputs(prepared, rows[:ROWS_OF_EXPORT]))
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_json(mark, {"model": model})
    except OSError:
        return


def shapes(prepared: Prepared) -> dict[str, list[int]]:
    """Return the shape of an image; of other kinds nothing that a network's code depends on."""
    images = prepared.arrays.get("images")
    return {} if images is None else {"images": list(images.shape[1:])}


def few_rows(prepared: Prepared) -> Int64Array:
    """Return up to ROWS rows of the training split, from the least to read to the most: int [n]."""
    rows = prepared.rows("train")
    some = rows[: 64 * ROWS]
    places = np.linspace(0, len(some) - 1, min(ROWS, len(some))).astype(int)
    return some[np.argsort(collation.sizes(prepared, some), kind="stable")[places]]


@torch.no_grad()
def refuse_wrong_scores(network: nn.Module, model: str, prepared: Prepared, rows: Int64Array) -> None:
    """InputError where no weight can be trained, or scores are not float [n, K], are no numbers, are others in a second
    pass, or depend on the other rows of a batch."""
    place, inputs, outputs = models.place(model), collation.inputs(prepared, rows), len(prepared.classes)
    if not any(weight.requires_grad for weight in network.parameters()):
        raise InputError(f"{place} has no weight that can be trained: let one require a gradient")
    try:
        answers = scores(network(*inputs))
    except KernelError as error:  # in strict mode, which refuses references
        raise InputError(str(error)) from None
    if answers.shape != (len(rows), outputs):
        what = f"output{'s' * (outputs > 1)}" if beyond_labels(prepared.description["task"]) else "classes"
        raise InputError(
            f"{place} returns {list(answers.shape)}: {prepared.description['name']} has {outputs} {what}, so return "
            f"{[len(rows), outputs]}"
        )
    if not answers.isfinite().all():
        raise InputError(
            f"{place} returns {float(answers[~answers.isfinite()][0])} before it is trained: look for a division by 0, "
            "a logarithm of 0 or an overflow"
        )
    # Float32 sums of large scores differ by more.
    most = TOLERANCE * max(1.0, float(answers.abs().max()))
    difference = float((answers - scores(network(*inputs))).abs().max())
    if not difference <= most:
        raise InputError(
            f"{place} is random in evaluation mode: a score is another by {difference:.2g} in a second pass; use "
            "nn.Dropout, or self.training"
        )
    fewer = max(1, len(rows) // 2)
    difference = float((answers[:fewer] - scores(network(*(part[:fewer] for part in inputs)))).abs().max())
    if not difference <= most:
        raise InputError(
            f"{place}: the score of a row depends on the other rows of its batch: without some of them it is another "
            f"by {difference:.2g}; compute nothing across rows in evaluation mode"
        )


def refuse_padding(network: nn.Module, model: str, prepared: Prepared, rows: Int64Array) -> None:
    """InputError where padding that is appended to a batch changes a score; kinds without padding have none."""
    entry = kinds.kind(prepared.kind).padding
    if entry is None:
        return
    for plain, padded in kinds.load(entry)(collation.inputs(prepared, rows)):
        with torch.no_grad():
            difference = float((scores(network(*plain)) - scores(network(*padded))).abs().max())
        if not difference <= TOLERANCE:
            raise InputError(
                f"{models.place(model)} lets padding into its output: more of it changes a score by {difference:.2g}; "
                "mask all that is beyond the counts of words and sentences, then run again"
            )


def refuse_no_gradient(
    network: nn.Module, model: str, inputs: tuple[Tensor, ...], target: Tensor, objective: Objective
) -> None:
    """InputError where a weight of the debug size gets no gradient of the training loss, which may use weights that no
    output depends on (a decoder)."""
    loss = objective.loss(network, network(*inputs), target, inputs)
    if loss.requires_grad:
        loss.backward()
    left = [name for name, weight in network.named_parameters() if weight.requires_grad and weight.grad is None]
    network.zero_grad(set_to_none=True)
    if left:
        raise InputError(
            f"{models.place(model)} has a weight that the loss does not depend on: '{left[0]}'; use it or remove it"
        )


def refuse_no_export(network: nn.Module, model: str, inputs: tuple[Tensor, ...]) -> None:
    """InputError where torch.export fails, or the exported network gives other scores for fewer rows."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    fewer = tuple(part[: max(1, len(part) - 1)] for part in inputs)
    try:
        exported = torch.export.export(network, inputs, dynamic_shapes=[{0: batch}] * len(inputs)).module()
        with torch.no_grad():
            difference = float((scores(exported(*fewer)) - scores(network(*fewer))).abs().max())
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{models.place(model)} cannot be exported for any batch size ({type(error).__name__}: "
            f"{reason[0] if reason else 'no reason given'}): let no shape or branch depend on values"
        ) from None
    if not difference <= TOLERANCE:
        raise InputError(
            f"{models.place(model)} gives other scores when it is exported: they differ by {difference:.2g} for fewer "
            "rows"
        )
