"""Make a page of all verdicts in a folder.

reread index results                      results/index.html and results/index.json
reread index verdicts --output site       in another folder, with copies of the files that the page links to
reread index verdicts --title "Claims on optimisers"

Finds verdict.json of `reread judge` and `reread claim`, published experiments and studies, in the folder and below.
Each verdict is computed again first, as `reread verify` does; nothing is written if a value differs. The page needs no
server. It sorts and filters by claim, verdict, metric and place, and shows each claim with its interval and its seeds.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from reread.commands.options import AsJson, print_json
from reread.commands.verify import of_document, of_folders
from reread.evaluation.verdict_index import LIST, PAGE, REPORT, Evidence, gather, index_page, listing
from reread.storage.errors import InputError
from reread.storage.files import json_text, write_text
from reread.verdicts.document import FILE


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the verdicts.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write the page there, not into FOLDER.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The heading of the page.")] = "Verdicts",
    as_json: AsJson = False,
) -> None:
    target = output or folder
    if target.exists() and not target.is_dir():
        raise InputError(f"--output {target} is a file: give a folder")
    evidence = gather(folder)
    for known in evidence:
        refuse_different(folder, known)
    entries = listing(evidence)
    target.mkdir(parents=True, exist_ok=True)
    if not target.samefile(folder):
        copy_linked(folder, target, evidence)
    write_text(target / PAGE, index_page(folder, evidence, title))
    write_text(target / LIST, json_text(entries))
    if as_json:
        print_json(entries)
    else:
        print(f"{len(entries)} claims: {target / PAGE} and {target / LIST}")


def copy_linked(folder: Path, target: Path, evidence: Sequence[Evidence]) -> None:
    """Copy the files that the page links to, each to its path below the target."""
    for path in (path for known in evidence for path in (known.path, known.path.parent / REPORT)):
        if (folder / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / path, target / path)


def refuse_different(folder: Path, known: Evidence) -> None:
    """Raise InputError for a verdict that its scores do not give."""
    path = folder / known.path
    checked = of_document(path, []) if path.name == FILE else of_folders([path.parent])[str(path.parent)]
    if lines := checked["differences"]:
        shown = path if path.name == FILE else path.parent
        raise InputError(f"{shown}: {lines[0]}; nothing is written: see `reread verify {shown}`")
