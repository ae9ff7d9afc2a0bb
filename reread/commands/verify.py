"""Compute published verdicts again and compare them.

reread verify results/imdb                 one experiment
reread verify results/*                    all of them; what has no verdicts is left out
reread verify results/studies/gates/imdb   the claims of a study
reread verify verdict.json                 a verdict of `reread judge`, from the scores in it; or its folder
reread verify verdict.json scores.csv      the same from the files of scores, whose digests are compared too
reread verify --write results/*            replace the verdicts by those of today's rule and ledger

Judges each comparison from the scores that results/NAME published, with the rule of today, and compares every value
with verdicts.json, metrics.json, plan.json, summary.json and differences.csv. Where items.npz is there, the scores and
what the test items leave are computed from the predictions on each item. How often the test split had been read before
is counted in results/test-reads.jsonl, whose chain is verified too. Reads no run, no data set and no weights.

A caution that the tuning published beside an experiment does not give any more is a note, and no difference.

Exit code 1 where a value differs; with --write they are printed and replaced, and differences.png is drawn again.
A verdict.json is not replaced: judge its scores again.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reread.commands.options import AsJson, print_json
from reread.evaluation.items import recompute
from reread.importers.rows import Reader, digest_of, find_sources
from reread.storage.errors import InputError, printable
from reread.storage.files import FROM_GIT, read_json, read_object
from reread.storage.ledger import read_ledger
from reread.storage.run_folder import FILES, read_files
from reread.verdicts.document import FILE, check, verify_document
from reread.verdicts.items import Items
from reread.verdicts.rule import Side
from reread.verdicts.scores import collect
from reread.verdicts.verify import (
    DIFFERENCES,
    RUNS,
    STUDY,
    VERDICTS,
    Count,
    Recompute,
    counted,
    published,
    verify,
    write_again,
)

DIFFERS = 1


def command(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER... | verdict.json [FILE]...",
            help="Folders of verdicts; or a verdict or its folder, and the files of its scores.",
            show_default=False,
        ),
    ],
    write: Annotated[bool, typer.Option("--write", help="Replace what differs; nothing is trained.")] = False,
    as_json: AsJson = False,
) -> None:
    # Files of scores may be addresses, whose double slash a path has not.
    folders, files = [Path(place) for place in places], places[1:]
    path = folders[0]
    if (path / FILE).is_file() and files and not any(folder.is_dir() for folder in folders[1:]):
        path /= FILE
    if path.suffix == ".json" and write:
        raise InputError(f"--write does not replace {path}: leave it out, or judge the scores again")
    results = {str(path): of_document(path, files)} if path.suffix == ".json" else of_folders(folders, write)
    if as_json:
        print_json(results)
    else:
        for name, result in results.items():
            print(said(name, result))
        if not results:
            print(f"{', '.join(places)}: no claim is judged here, so there is nothing to verify")
    if not write and any(result["differences"] for result in results.values()):
        raise typer.Exit(DIFFERS)


def of_folders(folders: Sequence[Path], write: bool = False) -> dict[str, dict[str, Any]]:
    """Return of each folder of results how many verdicts it has, how many of these from items, and what differs.

    write: replace what differs; a verdict.json is then left out.
    """
    entries = read_ledger()
    for folder in folders:
        if not folder.exists():
            raise InputError(f"there is no folder {folder}: give one of results/, such as results/default")
    kinds = (VERDICTS, STUDY) if write else (VERDICTS, STUDY, FILE)
    judged = [folder for folder in folders if any((folder / kind).is_file() for kind in kinds)]
    if not judged:
        raise InputError(f"no folder has {' or '.join(kinds)}: give one of results/, such as results/default")
    results = {}
    for folder in judged:
        if not any((folder / kind).is_file() for kind in (VERDICTS, STUDY)):
            results[str(folder)] = of_document(folder / FILE, [])
            continue
        from_items = 0

        def again(verdict: Mapping[str, Any], folder: Path = folder) -> tuple[Side, Side, Items] | None:
            nonlocal from_items
            measured = recompute(folder, verdict) if (folder / VERDICTS).is_file() else None
            if measured is None:
                return None
            from_items += 1
            return measured.treatment, measured.control, measured.items

        with as_published(folder):
            count = len(published(folder))
            reads = counted(folder, entries) if entries and count else None
            lines = verify(folder, again, reads)
            if count or lines:
                about = {"verdicts": count, "from_items": from_items, "differences": lines}
                results[str(folder)] = about | {"notes": notes_of(folder)}
            if write and lines:
                replace(folder, again, reads)
    return results


@contextlib.contextmanager
def as_published(folder: Path) -> Iterator[None]:
    """Raise InputError where a file of results/NAME cannot be read, or has not the values that are published."""
    try:
        if (folder / FILES).is_file():
            read_files(folder / FILES)
        if (folder / RUNS).is_file():
            read_json(folder / RUNS, FROM_GIT)
        yield
    except InputError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder} has a damaged file ({type(error).__name__}: {error}): restore the folder from git"
        ) from error


def notes_of(folder: Path) -> list[str]:
    """Return the cautions of an experiment that its tuning does not give any more."""
    if not (folder / VERDICTS).is_file():
        return []
    try:
        from reread.planning.tuning import outdated
    except ModuleNotFoundError:  # the small installation
        return []
    return [f"the tuning published beside it does not give this caution any more: {line}" for line in outdated(folder)]


def replace(folder: Path, again: Recompute, reads: Count | None) -> None:
    """Replace the verdicts of a folder, and the table and the chart of their differences."""
    # Verdicts are compared in a second; the report's libraries alone take longer to import.
    from reread.evaluation.report import write_differences

    verdicts = write_again(folder, again, reads)
    if (folder / DIFFERENCES).is_file():
        write_differences(verdicts, folder)


def of_document(path: Path, files: Sequence[str]) -> dict[str, Any]:
    """Return of a verdict.json the same; files: those of its scores, in the order in which it names them."""
    content = read_object(path, "claims")
    check(content, str(path))
    claims = content["claims"]
    if not files:
        return {"verdicts": len(claims), "from_items": 0, "differences": verify_document(content)}
    inputs = content["inputs"]
    if len(files) != len(inputs):
        names = ", ".join(source["file"] for source in inputs)
        raise InputError(f"{path} is of {len(inputs)} files, and {len(files)} are given: give {names}")
    texts = [f"{source['arm']}={file}" if source["arm"] else file for source, file in zip(inputs, files, strict=True)]
    sources, formats = find_sources(texts), {source["format"] for source in inputs}
    lines = [
        f"{source.text} is not the file that was judged: its sha256 is {str(digest)[:12]}…, and not {str(known)[:12]}…"
        for source, known in zip(sources, (about["sha256"] for about in inputs), strict=True)
        if (digest := digest_of(source)) != known
    ]
    try:
        reader = Reader(sources, formats.pop() if len(formats) == 1 else None, content["columns"])
        scores = {metric: collect(reader.rows(metric)) for metric in dict.fromkeys(claim["metric"] for claim in claims)}
        lines += verify_document(content, scores)
    except InputError as error:
        raise InputError("; ".join([*lines, str(error)])) from None
    return {"verdicts": len(claims), "from_items": sum(claim["items"] > 0 for claim in claims), "differences": lines}


def said(name: str, verified: Mapping[str, Any]) -> str:
    """Return what is printed of a folder or a verdict."""
    lines, from_items = verified["differences"], verified["from_items"]
    rest = verified["verdicts"] - from_items
    sources = [f"{from_items} from predictions on each item"] if from_items else []
    sources += [f"{rest} from published scores"] if rest else []
    result = f"{len(lines)} values differ" if lines else "all values agree"
    lines = [*lines, *(f"note: {line}" for line in verified.get("notes", []))]
    return "\n".join([f"{name}: verdicts {', '.join(sources)}: {result}", *(f"  {printable(line)}" for line in lines)])
