"""Print a model's answers to texts or images.

reread predict --data docstrings "Return the eigenvalues of a matrix. They are sorted."
reread predict --data docstrings --variant han --file README.md
reread predict --data docstrings --file DOCUMENTS.txt --lines --json      one document per line
cat TEXT | reread predict --data docstrings --version 3
reread predict --data digits one.png two.png                              image files

Without --variant or --version the champion of the data set answers. --json prints one line per document or image with
all that the model answers (reread/tracking/served_model.py). An image is resized and converted to what the model reads.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reread.commands.options import DATA, VARIANTS
from reread.storage.errors import InputError, printable

if TYPE_CHECKING:
    import numpy

    from reread.tracking.registry import LoadedModel

ROWS_AT_A_TIME = 256
LIKELIEST, MOST_ATTENDED = 3, 5
SHOWN_WORDS, SHOWN_LETTERS = 40, 40
NO_WORD = "There is no word in the document: this is the answer to nothing."
# A number from this on is shown with six digits and an exponent.
LARGE = 1e9


def command(
    data: Annotated[str, typer.Option(metavar="NAME", help="The model's data set.", autocompletion=DATA)],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|IMAGE", help="A document, or a file of an image; none: --file or standard input."),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This variant's best version on validation.", autocompletion=VARIANTS),
    ] = None,
    version: Annotated[int | None, typer.Option(metavar="N", help="This version.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of text or an image; - is standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Read a document per line, not one in all.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per document or image on stdout.")
    ] = False,
) -> None:
    if variant is not None and version is not None:
        raise InputError("--variant and --version: choose one")
    if texts and (file is not None or lines):
        raise InputError("TEXT and --file or --lines: choose one")
    rows: Iterator[Any]
    with ExitStack() as stack:
        if texts:
            rows = iter([_text(text.encode(errors="surrogateescape"), "an argument") for text in texts])
        else:
            source, where = _open(file, stack)
            rows = (_lines if lines else _whole)(source, where)
        from reread.tracking.registry import load_model

        model = load_model(data, variant=variant, version=version)
        if model.kind == "image":
            if lines:
                raise InputError(f"--lines is for texts, and --data {data} has images: leave it out")
            if not texts and (file is None or file == "-"):
                raise InputError(f"--data {data} has images: name files of images, as arguments or by --file")
            rows = _images(model, texts or [str(file)])
        elif not model.reads_text:
            raise InputError(
                f"--data {data} is {model.kind} data, and this command reads texts and images: `reread serve model "
                f"{data}` reads it, and in Python reread.load_model('{data}').predict(ROWS)"
            )
        else:
            _warn_of_a_file(texts or [])
        _answer(model, rows, as_json)


def _warn_of_a_file(texts: Iterable[str]) -> None:
    """Print a line on stderr for the first of ``texts`` that is the name of a file: of images it would be read."""
    for name in filter(os.path.isfile, texts):
        reads = f"--file {printable(shlex.quote(name))} reads the file"
        print(f"warning: '{printable(name)}' is taken as the text; {reads}", file=sys.stderr)
        return


def _open(name: str | None, stack: ExitStack) -> tuple[BinaryIO, str]:
    """The file of that name, or standard input, and what to call it."""
    if name in (None, "-"):
        if sys.stdin is None:
            raise InputError("standard input is closed: give a text, or --file")
        if sys.stdin.isatty():
            print("type the text, then Ctrl-D on a line of its own", file=sys.stderr)
        return sys.stdin.buffer, "standard input"
    try:
        return stack.enter_context(open(name, "rb")), name
    except OSError as error:
        raise InputError(f"'{name}' cannot be read ({error.strerror}): name a file of text") from None


def _whole(file: BinaryIO, where: str) -> Iterator[str]:
    """The file as one document, read when it is asked for: after the model, which may read no text."""
    try:
        content = file.read()
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror}): name a file of text") from None
    yield _text(content, where)


def _lines(file: BinaryIO, where: str) -> Iterator[str]:
    """Each line without its end, also an empty one: the answers are in the order of the lines."""
    for number, line in enumerate(file, 1):
        yield _text(line.removesuffix(b"\n").removesuffix(b"\r"), f"line {number} of {where}")


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 (byte {error.start} is 0x{content[error.start]:02x}): convert it, with iconv say"
        ) from None


def _images(model: "LoadedModel", names: Iterable[str]) -> Iterator["numpy.ndarray"]:
    """Each image file as the pixels that the model reads; where these are no square, of that size only."""
    from reread.preprocessing.image_files import COLOURS, read_image

    _, height, width, channels = model.description["arrays"]["images"]["shape"]
    for name in names:
        size = height if height == width else None
        pixels = read_image(Path(name), f"'{name}'", size, COLOURS.get(channels)).pixels
        if pixels.shape != (height, width, channels):
            raise InputError(
                f"'{name}' has {pixels.shape[0]} x {pixels.shape[1]} pixels of {pixels.shape[2]} channels: "
                f"{model.name} reads {height} x {width} of {channels}"
            )
        yield pixels


def _answer(model: "LoadedModel", rows: Iterator[Any], as_json: bool) -> None:
    """Print the answers, some at a time, so that a file of any length is read."""
    console = Console(highlight=False, soft_wrap=True)
    heading, answered = f"{model.variant}, version {model.version} of {model.name}\n", False
    while some := list(islice(rows, ROWS_AT_A_TIME)):
        answered = True
        answers = model.predict(_batch(model, some)).to_dict("records")
        if as_json:
            print(*(json.dumps(row, ensure_ascii=False) for row in answers), sep="\n")
            continue
        for row, notes in zip(answers, _notes(model, some, answers), strict=True):
            console.print(Text(heading), *notes, *_readable(row), sep="\n")
            heading = ""
    if not answered:
        print("no document was given, and none is answered", file=sys.stderr)


def _batch(model: "LoadedModel", rows: list[Any]) -> Any:
    """Return rows as ``LoadedModel.predict`` takes them."""
    if model.reads_text:
        return rows
    import numpy as np

    return np.stack(rows)


def _readable(row: Mapping[str, Any]) -> Iterable[Text | Table]:
    if "prediction" in row:
        yield Text(_number(row["prediction"]), style="bold")
        return
    several = isinstance(row["label"], list)
    label = ", ".join(row["label"]) or "none" if several else row["label"]
    yield Text(label, style="bold")
    likeliest = Table.grid(padding=(0, 2))
    for name, probability in sorted(row["probabilities"].items(), key=lambda item: -item[1])[:LIKELIEST]:
        likeliest.add_row(f"  {probability:.3f}", "█" * round(20 * probability), Text(name))
    yield likeliest
    if row.get("attention"):
        yield from _attended(row["attention"])


def _number(value: float) -> str:
    """Six significant digits, or all before the point of a larger number."""
    return f"{value:.0f}" if 1e6 <= abs(value) < LARGE else f"{value:.6g}"


def _notes(model: "LoadedModel", rows: list[Any], answers: list[dict[str, Any]]) -> Iterator[list[Text]]:
    """Yield the notes on each answer. Those of a baseline say nothing of words."""
    if not model.reads_text or "words_read" in answers[0]:
        yield from (list(_caveats(row)) for row in answers)
        return
    knows = _knows(model)
    for text in rows:
        if not any(map(str.isalnum, text)):
            yield [Text(NO_WORD, style="yellow")]
        elif not knows(text):
            yield [Text("Nothing in the document is known: an empty one has the same answer.", style="yellow")]
        else:
            yield []


def _knows(model: "LoadedModel") -> Callable[[str], bool]:
    """Return whether a baseline knows any feature of a text; of one whose features are others, always true."""
    from reread import kinds
    from reread.tracking.baseline_predictor import BaselinePredictor

    if isinstance(model.predictor, BaselinePredictor) and (entry := kinds.baselines()[model.predictor.name].knows):
        knows: Callable[[str], bool] = kinds.load(entry)(model.predictor.state)
        return knows
    return lambda text: True


def _caveats(row: Mapping[str, Any]) -> Iterable[Text]:
    """Yield notes on a network's answer: unknown words and truncation."""
    if "words_read" not in row:
        return
    read, unknown = row["words_read"], row["words_unknown"]
    words = "word" if read == 1 else "words"
    cut = ", the rest of the document was cut" if row["cut"] else ""
    if not read:
        yield Text(NO_WORD, style="yellow")
    elif unknown == read:
        note = f"None of its {read} {words} is known{cut}: this is the answer to no word in particular."
        yield Text(note, style="yellow")
    else:
        yield Text(f"{read} {words} read, {unknown} of them unknown{cut}", style="dim")


def _attended(attention: list[Mapping[str, Any]]) -> Iterable[Text]:
    """The sentence with the most weight, and its words of most weight."""
    most = max(attention, key=lambda sentence: sentence["weight"])
    shown = [word if len(word) <= SHOWN_LETTERS else f"{word[:SHOWN_LETTERS]}…" for word in most["words"]]
    weighted = sorted(zip(most["word_weights"], shown, strict=True), key=lambda pair: -pair[0])
    words = shown[:SHOWN_WORDS] + ["…"] * (len(shown) > SHOWN_WORDS)
    place = f"of {len(attention)} sentences, " if len(attention) > 1 else ""
    yield Text(f"Most attended ({place}weight {most['weight']:.2f}): {_printable(' '.join(words))}")
    attended = ", ".join(f"{word} {weight:.2f}" for weight, word in weighted[:MOST_ATTENDED])
    yield Text(f"In it: {_printable(attended)}")


def _printable(text: str) -> str:
    """A document cannot move the cursor: what is no printable character is shown as U+FFFD."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
