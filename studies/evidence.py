"""What every study writes, and how: a folder that is whole or absent, its figure drawn from its data files."""

import argparse
import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch

from cuda_ext.library import ReferenceWarning
from evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION
from evaluation.statistics import Interval
from models.layers.cells import NAMES
from storage.errors import InputError
from storage.files import published_directory, write_json, write_text
from storage.locks import file_lock

FOLDER = Path("results", "studies")
Part = TypeVar("Part", bound=Hashable)
# So many digits of a table's numbers that nothing is lost in a figure or a comparison, and a diff stays readable.
DIGITS = "%.6g"
# One colour a cell in every figure.
CELL_COLOURS = dict(zip(NAMES, (BLUE, ORANGE, SKY, GREY, INK, VERMILLION), strict=True))


def options(name: str, description: str, of_data: bool = False) -> argparse.ArgumentParser:
    """A parser of the options that every study has: --to FOLDER and --debug. ``of_data``: its evidence is of one data
    set, in a folder of that name."""
    parser = argparse.ArgumentParser(prog=f"python -m studies.{name}", description=description)
    place = f"FOLDER/{name}/DATA/" if of_data else f"FOLDER/{name}/"
    parser.add_argument("--to", type=Path, default=FOLDER, help=f"write {place} (default: {FOLDER})")
    parser.add_argument("--debug", action="store_true", help="so small that it proves nothing, in seconds")
    return parser


def arguments(name: str, description: str) -> argparse.Namespace:
    """The options of a study that has no others."""
    return options(name, description).parse_args()


def destination(folder: Path, name: str) -> Path:
    """Where a study's evidence goes; InputError, before any work, if something else is there."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --to a folder")
    place = folder / name
    if place.exists() and not (place / "results.json").is_file():
        raise InputError(f"{place} is there and is not a study's evidence: remove it or give another --to")
    return place


def publish(
    place: Path, results: dict[str, Any], tables: dict[str, pd.DataFrame], draw: Callable[[Path, Path], None]
) -> None:
    """Write results.json, NAME.csv for each table, and figure.png, which ``draw(folder, path)`` makes of those files.

    An older folder is replaced when the new one is complete.
    """
    with published_directory(place, replace=True) as folder:
        write_json(folder / "results.json", results)
        for name, table in tables.items():
            write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format=DIGITS))
        draw(folder, folder / "figure.png")


def make_once(places: Mapping[Part, Path], make: Callable[[Part, Path], None]) -> None:
    """``make`` each part that is not kept at its place; those last that another process is making."""
    for wait in (False, True):
        for part, place in places.items():
            with file_lock(place.with_suffix(".lock"), blocking=wait) as free:
                if free and not place.is_dir():
                    make(part, place)


def computed_on(device: torch.device) -> dict[str, str]:
    """On what kind of machine the numbers are repeatable."""
    if device.type == "cuda":
        return {"torch": torch.__version__, "device": torch.cuda.get_device_name(device)}
    return {"torch": torch.__version__, "device": f"CPU, {torch.backends.cpu.get_cpu_capability()}"}


@contextlib.contextmanager
def kernels_where_there_are(device: torch.device) -> Iterator[None]:
    """Inside the block a CPU runs what has no kernel there without a warning: ``computed_on`` says where it ran."""
    with warnings.catch_warnings():
        if device.type == "cpu":
            warnings.simplefilter("ignore", ReferenceWarning)
        yield


def interval(found: Interval) -> dict[str, Any]:
    return dataclasses.asdict(found)


def told(results: dict[str, Any], place: Path) -> str:
    """What a study prints when it is done: each claim's verdict, and where the evidence lies."""
    lines = [f"{one['verdict']}: {one['claim']}\n    {one['says']}" for one in results["claims"]]
    return "\n".join([*lines, f"evidence: {place}"])
