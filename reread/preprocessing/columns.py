"""Which column of a user's table has the text, the label, the split, the group and the id, by names and values."""

import ast
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reread.preprocessing.delimited import Row
from reread.preprocessing.tables import SPLIT_NAMES
from reread.storage.errors import InputError, refuse_unknown

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
NAMES = {
    "content": ("text", "body", "review", "content", "comment", "document", "sentence", "message", "file", "image"),
    "label": ("label", "labels", "class", "target", "category", "sentiment", "stars", "rating", "topic", "topics", "y"),
    "split": ("split", "fold", "partition", "subset"),
    "group": ("group", "patient", "patient_id", "subject", "author", "user", "film", "movie"),
    "id": ("id", "key", "uuid", "file"),
}
SPECIAL = {name for part in ("split", "group", "id") for name in NAMES[part]}
KNOWN_NAMES = {name for names in NAMES.values() for name in names}
BINARY = {"0", "1", "true", "false", ""}
# In place of a column: there is none.
NO_COLUMN = "none"
NEARLY_UNIQUE = 0.9  # of the rows that are read: the subjects of messages are titles, those of a study come again
GROUP_GUESSED = " (guessed: its rows stay in one split; --group none if they need not)"
# In place of the character between the labels of a row.
LIST = "list"
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
# Of a column of texts, beside which the guessed one is not the only one.
TEXT_WORDS, TEXT_DISTINCT = 3, 0.5  # words on average, and different texts among the rows
# As pandas reads them. The data card lists what was left out.
MISSING = {"NaN", "nan", "NA", "<NA>", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaT"}
# Written otherwise, or a word of its own: a class, and named.
LIKE_MISSING = {value.casefold() for value in MISSING} | {"nil", "undefined", "missing", "unknown", "?", "-", "--", "."}


@dataclass(frozen=True)
class Columns:
    """Where the parts of a row are.

    content: column of the text, or of the file of a text or image, or several whose texts are joined; labels: column of
    the label, or several columns of 0 and 1; separator: between the labels of a row, where its task is multi-label;
    split, group, id: columns, or None; unused: the other columns; group_guessed: whether the group is a guess; hints:
    of columns that are not what their name says.
    """

    content: tuple[str, ...]
    labels: tuple[str, ...]
    kind: str
    task: str
    files: bool
    separator: str | None = None
    split: str | None = None
    group: str | None = None
    id: str | None = None
    unused: tuple[str, ...] = ()
    group_guessed: bool = False
    hints: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Say what was found, a line per part."""
        between = {None: "", LIST: ", as a list"}.get(self.separator, f", between {self.separator!r}")
        several = f", several per row{between}"
        parts = {
            "text" if self.kind == "text" else "image": ", then ".join(self.content),
            "label": ", ".join(self.labels) + {"multi-label": several, "regression": ", a number"}.get(self.task, ""),
            "split": self.split or "none: rows are split by their content, 70 % train, 15 % validation, 15 % test",
            "group": f"{self.group or 'none'}{GROUP_GUESSED if self.group_guessed else ''}",
            "id": self.id or "none: the number of the row",
        }
        if self.unused:
            parts["unused"] = ", ".join(self.unused)
        return [f"{part:<6} {of_it}" for part, of_it in parts.items()] + [f"hint   {hint}" for hint in self.hints]


def guess_columns(
    head: Sequence[Row],
    where: str,
    content: Sequence[str] = (),
    labels: Sequence[str] = (),
    split: str | None = None,
    group: str | None = None,
    identity: str | None = None,
    task: str | None = None,
    whole: bool = False,
) -> Columns:
    """Find the columns of a table by the names and values of its first rows; what is given is taken as it is.

    whole: the head has all rows of the table.

    NO_COLUMN as split, group or identity: there is none, whatever a column is called.
    InputError for a column that there is not, and where none looks like a text or a label.
    """
    if not head:
        raise InputError(f"{where} has no rows")
    known = list(dict.fromkeys(name for row in head for name in row))
    without = [NO_COLUMN not in known and name == NO_COLUMN for name in (split, group, identity)]
    split, group, identity = (
        None if none else name for name, none in zip((split, group, identity), without, strict=True)
    )
    given = [name for name in (*content, *labels, split, group, identity) if name is not None]
    refuse_unknown(given, known, f"the columns of {where}")
    for name in content:
        if name in labels:
            raise InputError(
                f"column '{name}' of {where} is given as text and as label: choose another for one of them"
            )
    if len(set(content)) < len(content):
        raise InputError(f"{where}: a column is given twice by --text ({', '.join(content)}): give it once")
    free = [name for name in known if name not in given]

    def by_name(part: str) -> str | None:
        return next((name for wanted in NAMES[part] for name in free if name.lower() == wanted), None)

    def taken(name: str | None) -> str | None:
        if name in free:
            free.remove(name)
        return name

    hints: list[str] = []
    others: tuple[str, ...] = ()
    if not labels:
        candidates = [name for name in free if name not in content and not _is_special(name)]
        if named := by_name("label"):
            labels = (named,)
        elif task == "regression":
            labels = _numbers(head, candidates)
        else:
            labels, others = _labels_by_values(head, candidates)
        if not labels:
            counts = ", ".join(f"{name} {_distinct(head, name)}" for name in known)
            of_rows = f"the first {len(head):,} rows" * (not whole) or "the rows"
            raise InputError(
                f"{where}: no column looks like a label: give one by --label (columns with their values in {of_rows}: "
                f"{counts})"
            )
        if others:
            shown = [f"{name} ({len(_filled(head, name))} values)" for name in others]
            hints.append(f"label is a guess, and these could be it too: {', '.join(shown)}: give one by --label")
        for name in labels:
            taken(name)
    text_guessed = not content
    if not content:
        longest = max(free, key=lambda name: sum(len(str(row.get(name) or "")) for row in head), default=None)
        text = by_name("content") or longest
        if text is None:
            raise InputError(f"{where}: no column looks like a text: give one by --text ({', '.join(known)})")
        taken(text)
        content = (text,)
    file = "file" in content
    of_split, of_group, of_id = without
    if split is None and not of_split and (column := by_name("split")) and _has_splits(head, column):
        split = taken(column)
    hints += [_numbered_folds(head, name) for name in free if split is None and _is_fold(name)]
    group_guessed, useless = False, []
    if group is None and not of_group:
        groups = [name for wanted in NAMES["group"] for name in free if name.lower() == wanted]
        useless = [name for name in groups if _groups_nothing(head, name, whole)]
        group = taken(next((name for name in groups if name not in useless), None))
        group_guessed = group is not None
    if identity is None and not of_id:
        column = by_name("id")
        is_unique = column is not None and _distinct(head, column) == len(head)
        identity = taken(column) if is_unique else "file" if file else None
    values = [str(row.get(content[0]) or "") for row in head]
    no_images = [value for value in values if Path(value).suffix.lower() not in IMAGES]
    images = not no_images
    if (file or images) and len(content) > 1:
        raise InputError(f"{where}: --text has {', '.join(content)}, and files cannot be joined: give one of them")
    if file and 0 < len(no_images) < len(values):
        raise InputError(f"{where} has images and other files, such as {no_images[0]}: remove those of one kind")
    texts = [name for name in free if text_guessed and not file and not images and _has_texts(head, name)]
    joined = " ".join(f"--text {name}" for name in known if name in (*texts, *content))
    hints += [
        f"column '{name}' has another value in nearly every row: it is taken for no group, unless by --group {name}"
        f"{f'; {joined} joins the texts' * (name in texts)}"
        for name in useless
    ]
    if unused := [name for name in texts if name not in useless]:
        hints.append(f"there are texts in {', '.join(unused)} too, which are left out: {joined} joins them")
    separator = None
    if len(labels) > 1 and task == "regression":
        raise InputError(f"{where}: --label has {', '.join(labels)}, and a regression has one number: give one column")
    if len(labels) > 1:
        task = task or "multi-label"
    elif task is None and _has_decimal_commas(head, labels[0]):
        task = "single-label"
        hints.append(
            f"column '{labels[0]}' has numbers with a decimal comma, and each is a class: write decimal points and "
            "give --task regression, or give --task multi-label where two labels are in each cell"
        )
    elif task not in ("single-label", "regression"):
        separator = _separator([row.get(labels[0]) for row in head])
        task = task or ("multi-label" if separator else "single-label")
    return Columns(
        tuple(content), tuple(labels), "image" if images else "text", task, images or file, separator, split,
        group, identity, tuple(free), group_guessed, tuple(filter(None, hints)),
    )  # fmt: skip


def _labels_by_values(head: Sequence[Row], names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the column of lists or, without one, all columns of 0 and 1, or without several that with fewest values;
    and the other columns of few values, between which and the latter no value decides.

    Empty where no column looks like a label.
    """
    for name in names:
        members = [member for row in head for member in parse_list(row.get(name)) or () if isinstance(member, str)]
        if members and len(set(members)) <= max(2, len(head) // 2):
            return (name,), ()
    few = [name for name in names if 1 < _distinct(head, name) <= max(2, len(head) // 10)]
    if not few:
        return (), ()
    binary = tuple(name for name in names if {str(row.get(name) or 0).lower() for row in head} <= BINARY)
    fewest = min(few, key=lambda name: _distinct(head, name))
    labels = binary if len(binary) > 1 and set(binary) & set(few) else (fewest,)
    return labels, tuple(name for name in few if name not in labels)


def _numbers(head: Sequence[Row], names: Sequence[str]) -> tuple[str, ...]:
    """Return the column of numbers, some of which may be missing; empty where there is none, or several."""
    filled = {name: _filled(head, name) for name in names}
    numeric = [name for name, texts in filled.items() if len(texts) > 1 and all(map(is_number, texts))]
    return (numeric[0],) if len(numeric) == 1 else ()


def _filled(head: Sequence[Row], name: str) -> set[str]:
    """Return the different values of a column, without missing ones."""
    texts = {str(row.get(name)).strip() for row in head}
    return {text for text in texts if text and text.casefold() not in LIKE_MISSING}


def is_number(text: str) -> bool:
    """Return whether a cell's text is a number, and no NaN or infinity."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_fold(name: str) -> bool:
    return name.lower() in NAMES["split"] or "fold" in name.lower().replace("folder", "")


def _is_special(name: str) -> bool:
    """Return whether a column is by its name no label."""
    return name.lower() in SPECIAL or _is_fold(name)


def _numbered_folds(head: Sequence[Row], name: str) -> str:
    """Return a hint where a column has the numbers of folds, and "" where it has not."""
    values = {str(row.get(name)).strip() for row in head}
    if not all(value.isdecimal() for value in values):
        return ""
    numbers = sorted(map(int, values))
    return (
        f"column '{name}' has the numbers {numbers[0]} to {numbers[-1]}, and is taken for no split: one of train, "
        f"validation and test in each row would be (--split)"
    )


def _groups_nothing(head: Sequence[Row], name: str, whole: bool) -> bool:
    """Return whether a column named as a group has a value of its own in each row or, of subjects, in nearly each.

    Where the head is not the whole table, groups may come again later: only titles, of several words, are none there.
    """
    values = {str(row.get(name)) for row in head}
    if whole and len(values) == len(head):
        return True
    titles = sum(len(value.split()) > 1 for value in values) > len(values) / 2
    return name.lower() == "subject" and len(values) > NEARLY_UNIQUE * len(head) and (whole or titles)


def _has_splits(head: Sequence[Row], name: str) -> bool:
    """Return whether a column may be that of the split: folds, with numbers for example, are none."""
    few = _distinct(head, name) <= len(SPLIT_NAMES)
    return few and (name.lower() == "split" or any(str(row.get(name)).strip().lower() in SPLIT_NAMES for row in head))


def parse_list(value: Any) -> list[Any] | None:
    """Return a cell that is a list, or the text of one in JSON or in Python, as a list; None where it is none."""
    if isinstance(value, str) and value.strip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            try:
                return list(parse(value.strip()))
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value if isinstance(value, list) else None


def _distinct(head: Sequence[Row], name: str) -> int:
    return len({str(row.get(name)) for row in head})


def _has_texts(head: Sequence[Row], name: str) -> bool:
    """Return whether a column has texts of several words, of which most rows have their own."""
    texts = [value for row in head if (value := row.get(name)) and parse_list(value) is None]
    if not texts or not all(isinstance(text, str) for text in texts):
        return False
    words = sum(len(text.split()) for text in texts)
    return words >= TEXT_WORDS * len(texts) and len(set(texts)) >= TEXT_DISTINCT * len(head)


def _has_decimal_commas(head: Sequence[Row], name: str) -> bool:
    """Return whether each cell that is filled is a number with a decimal comma, and not two labels."""
    filled = _filled(head, name)
    return bool(filled) and all(map(DECIMAL_COMMA.fullmatch, filled))


def _separator(values: Sequence[Any]) -> str | None:
    """Return what is between the labels of a row: LIST for lists, a character, or None for one label each."""
    # A list that cannot be read is refused with its line, and not split at its commas.
    if any(parse_list(value) is not None or (str(value).startswith("[") and "," in str(value)) for value in values):
        return LIST
    texts = [str(value) for value in values if value is not None]
    for mark in "|;,":
        parts = [part.strip() for text in texts for part in text.split(mark)]
        # Parts that occur again and again are labels; those of a label with a comma in its name do not.
        if any(mark in text for text in texts) and len(set(parts)) < len(set(texts)):
            return mark
    return None
