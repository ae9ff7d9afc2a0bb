"""TensorBoard: event files, or folders of them, one per run. The score is the last value of a tag, named by --metric.

The arm is named before the folder, as ARM=FOLDER, and the seed of a folder is its number.
"""

import logging
from typing import Any

from reread.importers import Source, Table, library
from reread.storage.errors import InputError

EVENTS = "*tfevents*"
# All values; without it a sample of them is kept.
ALL = {"scalars": 0, "tensors": 0}


def recognises(source: Source) -> bool:
    if source.is_address:
        return False
    return any(source.path.glob(EVENTS)) if source.path.is_dir() else source.path.match(EVENTS)


def read(source: Source) -> Table:
    """Return one row: each tag's value at its last step. TensorFlow 2 writes scalars as tensors of one number."""
    events = library("tensorboard.backend.event_processing.event_accumulator", "TensorBoard's event files")
    util = library("tensorboard.util.tensor_util", "TensorBoard's event files")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    run = events.EventAccumulator(source.text, size_guidance=ALL)
    run.Reload()
    tags = run.Tags()
    last: dict[str, Any] = {tag: max(run.Scalars(tag), key=lambda event: event.step).value for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        array = util.make_ndarray(max(run.Tensors(tag), key=lambda event: event.step).tensor_proto)
        if array.size == 1 and array.dtype.kind in "fiu":
            last[tag] = float(array.reshape(-1)[0])
    if not last:
        raise InputError(f"{source.text} has no scalar: give a run that logged one")
    return Table({tag: [value] for tag, value in last.items()}, numbered=True)
