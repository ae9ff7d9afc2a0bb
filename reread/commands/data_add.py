"""Add a table or folder of your own to data/.

reread data add reviews.csv --text body --label stars
reread data add reviews.csv                              guess the columns, and show them
reread data add posts.csv --text title --text body       join title and body by a line break
reread data add news.jsonl --label topics --task multi-label
reread data add letters/                                 a folder per class, or train/ and test/ with one per class
reread data add reviews.csv --dry-run                    preview columns, rows, classes and splits; write nothing
reread data add export.csv --delimiter ';' --encoding cp1252 --no-header --text 2 --label 1
reread data add photos/ --split split.csv --group patient --size 64 --colours grey

Reads CSV, TSV, JSON lines and Parquet, as a stream. Without a split, rows are split by their content, and rows of one
group stay together. A text that a later split contains too is left out. The data card is data/NAME/card.md.
Then: `dvc add data`, and commit data.dvc and data.manifest.json.
"""

import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from reread.commands.options import AsJson, print_json, print_table, progress
from reread.storage.errors import InputError
from reread.storage.files import content_key, write_text
from reread.storage.locks import held_alone

if TYPE_CHECKING:
    from reread.preprocessing.delimited import Dialect
    from reread.preprocessing.manifest import DataSetEntry
    from reread.preprocessing.own_data import Preview
    from reread.preprocessing.own_data import Table as OwnTable

CARD = "card.md"
SIZES = (2, 4096)  # pixels to which images are resized
# Of a preview: characters of a text, and classes by their number of rows.
SHOWN_CHARACTERS, SHOWN_CLASSES = 70, 20
LOCKS = Path(".locks")


def name_of(path: Path) -> str:
    """Return the name of a data set by its file: in letters without accents, digits, - and _."""
    plain = unicodedata.normalize("NFKD", path.resolve().stem.replace("ß", "ss"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return re.sub(r"[^A-Za-z0-9_-]+", "_", plain).strip("_-")


def lock_of(name: str) -> Path:
    """Return the path of the lock of a data set that is being added."""
    return LOCKS / f"data-{content_key(name)}.lock"


def try_lock_of(name: str) -> Path:
    """Return the path of the lock of a data set on which `reread try` tries networks."""
    return LOCKS / f"try-{content_key(name)}.lock"


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the locks of a data set, whose files, entry and card belong together, and of what is tried on it; InputError
    where another holds one."""
    refusal = f"another process adds or removes '{name}': wait until it ends, or choose another --name"

    def tried(by: str) -> str:
        return f"networks are tried on '{name}' by {by}: wait until that ends, or choose another --name"

    with held_alone(lock_of(name), lambda _holder: refusal), held_alone(try_lock_of(name), tried):
        yield


def command(
    path: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="A table, or a folder with a folder per class.")],
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="The text, or the file of a text or image; repeatable: texts are joined."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The label; repeatable: columns of 0 and 1.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The data set's name; default: the file's.")] = None,
    split: Annotated[
        str | None, typer.Option(metavar="COLUMN|FILE", help="The split, or a table of ids and splits; none: no guess.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Rows with the same value here stay in one split; none: no guess."),
    ] = None,
    identity: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="The name of a row.")] = None,
    task: Annotated[
        Literal["single-label", "multi-label", "regression"] | None,
        typer.Option(help="One label per row, several, or a number."),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="The character between values, such as ; or tab.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="The encoding, such as cp1252 or utf-16; default: utf-8.")
    ] = None,
    quote: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="The quotation mark of a CSV or TSV; none: it has none.")
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether line 1 has names; else columns are 1, 2, ..."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=SIZES[0], max=SIZES[1], metavar="PIXELS", help="Resize images to a square.")
    ] = None,
    colours: Annotated[Literal["grey", "rgb"] | None, typer.Option(help="Convert images to these colours.")] = None,
    source: Annotated[str, typer.Option(metavar="TEXT", help="Where the data is from, for its card.")] = "",
    licence: Annotated[str, typer.Option(metavar="TEXT", help="Its licence, for its card.")] = "unknown",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print a preview and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    from reread.planning.experiment import PARAMETERS_FILE
    from reread.preprocessing.delimited import Dialect
    from reread.preprocessing.ingest import sizes

    columns = {"content": text or (), "labels": label or (), "group": group, "identity": identity, "task": task}
    dialect = Dialect(delimiter, encoding, quote, header)
    with progress(as_json):
        name, table, guesses = add(
            path, name, columns, split, dialect, size, colours, source, licence, dry_run=dry_run, say=print
        )
    card = card_of(name)
    if dry_run:
        if as_json:
            print_json({**asdict(table.columns), **guesses.to_json()})
            return
        print_preview(guesses)
        print("Nothing was written: without --dry-run the data set is added")
        return
    if as_json:
        print_json({"name": name, "card": str(card), **guesses.to_json()})
        return
    print(f"{name}: {sizes(guesses)}")
    print(f"Card: {card}")
    if taken_experiment(name):
        print("Next: dvc add data, and commit data.dvc and data.manifest.json")
    elif PARAMETERS_FILE.is_file():
        print(f"Next: reread try {name}\n      dvc add data, and commit data.dvc and data.manifest.json")
    else:
        print(f"Next: `reread try {name}` needs {PARAMETERS_FILE}, which is not here: run both in the project's folder")


def card_of(name: str) -> Path:
    """Return the path of a data set's card."""
    from reread.preprocessing.manifest import DATA_DIRECTORY

    return DATA_DIRECTORY / name / CARD


def add(
    path: Path,
    name: str | None,
    columns: Mapping[str, Any],
    split: str | None,
    dialect: "Dialect",
    size: int | None,
    colours: str | None,
    source: str,
    licence: str,
    *,
    dry_run: bool,
    say: Callable[[str], None],
) -> tuple[str, "OwnTable", Any]:
    """Add a table or folder with its card; return the data set's name, its table, and its entry in the manifest.

    columns: as ``guess_columns`` takes them; dry_run: nothing is written, and a ``Preview`` is in the entry's place.
    ``say`` gets a line for each column, for what is left out, and for each warning.
    """
    from reread.planning.manifest import read_manifest
    from reread.preprocessing.ingest import absent, absent_classes, data_card
    from reread.preprocessing.manifest import open_data_set
    from reread.preprocessing.own_data import add_table, check_name, open_table, preview

    if name is None and not (name := name_of(path)):
        raise InputError(f"'{path.name}' has no letter of a to z and no digit: name the data set by --name")
    check_name(name)  # before the columns are shown
    with contextlib.nullcontext() if dry_run else alone(name):
        replaced = read_manifest().datasets.get(name)
        table = open_table(path, split, dialect, **columns)
        for option, value in {"--size": size, "--colours": colours}.items():
            if value is not None and table.columns.kind != "image":
                raise InputError(f"{option} converts images, and {path} has texts: leave it out")
        for line in table.lines():
            say(line)
        if file := taken_experiment(name):
            say(f"warning: {file} is there, so that `reread try {name}` is refused: choose another --name")
        if dry_run:
            seen = preview(name, table, size, say=say, colours=colours)
            for line in replacement(name, replaced, seen.version):
                say(line)
            for line in absent(seen.classes, seen.counts):
                say(f"warning: {line}")
            return name, table, seen
        entry = add_table(name, table, source, licence, size, say=say, colours=colours)
        for line in replacement(name, replaced, entry.version):
            say(line)
        data = open_data_set(name)
        write_text(card_of(name), data_card(data))
    if shared := sum(entry.leaks.get("exact", {}).values()):
        say(f"warning: {shared} texts are in two splits")
    for line in absent_classes(data):
        say(f"warning: {line}")
    return name, table, entry


def replacement(name: str, replaced: "DataSetEntry | None", version: str) -> list[str]:
    """Return a line on the data set of that name that is replaced and on what uses it; none where the version is equal.

    version: "" where it is not known, as on a dry run of images.
    """
    if replaced is None or replaced.version == version:
        return []
    from reread.commands.data_remove import uses
    from reread.preprocessing.ingest import sizes

    counts = {what: len(names) for what, names in uses(name).items() if names}
    used = ", ".join(f"{count:,} {what if count > 1 else what[:-1]}" for what, count in counts.items())
    unless = "" if version else ", unless all images are the same"
    return [f"replaces {name}{unless}: {sizes(replaced)}, used by {used or 'no run, report or experiment'}"]


def taken_experiment(name: str) -> Path | None:
    """Return the experiment of a data set's name that another hand than `reread try` has written, if any."""
    from reread.planning.experiment import EXPERIMENTS

    file = EXPERIMENTS / f"{name}.yaml"
    if not file.is_file():
        return None
    from reread.planning.trial import is_of_another_hand

    return file if is_of_another_hand(file) else None


def print_preview(seen: "Preview") -> None:
    """Print the first rows, the classes with their rows by split, and the splits."""
    rows = Table(box=None, padding=(0, 3, 0, 0))
    for title in ("row", "labels", "split", "text or file"):
        rows.add_column(title, no_wrap=True)
    for row in seen.rows:
        labels = ", ".join(seen.named(row.labels))
        text = " ".join(row.text.split())
        short = text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
        rows.add_row(*map(Text, (row.id, labels, row.split, short)))
    print_table(rows)
    classes = Table(box=None, padding=(0, 3, 0, 0))
    classes.add_column("class", no_wrap=True)
    for split in seen.splits:
        classes.add_column(split, justify="right")
    largest = sorted(range(len(seen.classes)), key=lambda number: -seen.counts[number].sum())[:SHOWN_CLASSES]
    for number in sorted(largest):
        classes.add_row(Text(seen.classes[number]), *map(str, seen.counts[number]))
    if rest := len(seen.classes) - len(largest):
        classes.add_row(f"and {rest} with fewer rows")
    classes.add_row("all rows", *map(str, seen.splits.values()))
    print_table(classes)
