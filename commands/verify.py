"""Compute published verdicts again and compare them.

reread verify results/imdb                 one experiment
reread verify results/*                    all of them; what has no verdicts is left out
reread verify results/studies/copying      the claims of a study

Judges each comparison from the scores that results/NAME published, with the rule of today, and compares every value
with verdicts.json, metrics.json, plan.json and summary.json. Where items.npz is there, the scores and what the test
items leave are computed from the predictions on each item. Reads no run, no data set and no weights.

Exit code 1 where a value differs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.options import AsJson, print_json
from evaluation.items import recompute
from storage.errors import InputError
from verdicts.items import Items
from verdicts.rule import Side
from verdicts.verify import STUDY, VERDICTS, published, verify

DIFFERS = 1


def command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of results/.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    for folder in folders:
        if not folder.exists():
            raise InputError(f"there is no folder {folder}: give one of results/, such as results/default")
    judged = [one for one in folders if (one / VERDICTS).is_file() or (one / STUDY).is_file()]
    if not judged:
        raise InputError(f"no folder has {VERDICTS} or {STUDY}: give one of results/, such as results/default")
    found = {}
    for folder in judged:
        from_items = 0

        def again(verdict: Mapping[str, Any], folder: Path = folder) -> tuple[Side, Side, Items] | None:
            nonlocal from_items
            measured = recompute(folder, verdict) if (folder / VERDICTS).is_file() else None
            if measured is None:
                return None
            from_items += 1
            return measured.treatment, measured.control, measured.items

        lines, count = verify(folder, again), len(published(folder))
        if not count and not lines:
            continue
        found[str(folder)] = {"verdicts": count, "from_items": from_items, "differences": lines}
        if not as_json:
            print(said(folder, found[str(folder)]))
    if as_json:
        print_json(found)
    if any(one["differences"] for one in found.values()):
        raise typer.Exit(DIFFERS)


def said(folder: Path, found: Mapping[str, Any]) -> str:
    """Return what is printed of a folder."""
    lines, from_items = found["differences"], found["from_items"]
    rest = found["verdicts"] - from_items
    sources = [f"{from_items} from predictions on each item"] if from_items else []
    sources += [f"{rest} from published scores"] if rest else []
    result = f"{len(lines)} values differ" if lines else "all values agree"
    return "\n".join([f"{folder}: verdicts {', '.join(sources)}: {result}", *(f"  {line}" for line in lines)])
