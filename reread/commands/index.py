"""Make a page of all verdicts in a folder.

reread index results                      results/index.html and results/index.json
reread index verdicts --output site       in another folder, with a verdict.json of each place
reread index verdicts --title "Claims on optimisers"

Finds verdict.json of `reread judge` and `reread claim`, published experiments and studies, in the folder and below.
Each verdict is computed again first, as `reread verify` does; nothing is written if a value differs. The page needs no
server. It sorts and filters by claim, verdict, metric and place, and shows each claim with its interval and its seeds.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from reread.commands.judging import refuse_file
from reread.commands.options import AsJson, print_json
from reread.commands.verify import of_document, of_folders
from reread.evaluation.verdict_index import LIST, PAGE, REPORT, Evidence, citable, gather, index_page, listing
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
    refuse_file(target)
    evidence = gather(folder)
    for known in evidence:
        refuse_different(folder, known)
    target.mkdir(parents=True, exist_ok=True)
    if not target.samefile(folder):
        evidence = [copied(folder, target, known) for known in evidence]
    entries = listing(evidence)
    write_text(target / PAGE, index_page(folder, evidence, title))
    write_text(target / LIST, json_text(entries))
    if as_json:
        print_json(entries)
    else:
        print(f"{len(entries)} claims: {target / PAGE} and {target / LIST}")


def copied(folder: Path, target: Path, known: Evidence) -> Evidence:
    """Copy what the page links to, each file to its path below the target, and return the evidence as it is there.

    A published experiment or study becomes a verdict.json, so that every verdict of the page can be cited and verified.
    """
    place = target / known.path.parent
    place.mkdir(parents=True, exist_ok=True)
    if (report := folder / known.path.parent / REPORT).is_file():
        shutil.copyfile(report, place / REPORT)
    if known.path.name == FILE:
        shutil.copyfile(folder / known.path, place / FILE)
    else:
        write_text(place / FILE, json_text(citable(folder, known)))
    return replace(known, path=known.path.with_name(FILE))


def refuse_different(folder: Path, known: Evidence) -> None:
    """Raise InputError for a verdict that its scores do not give."""
    path = folder / known.path
    checked = of_document(path, []) if path.name == FILE else of_folders([path.parent])[str(path.parent)]
    if lines := checked["differences"]:
        shown = path if path.name == FILE else path.parent
        raise InputError(f"{shown}: {lines[0]}; nothing is written: see `reread verify {shown}`")
