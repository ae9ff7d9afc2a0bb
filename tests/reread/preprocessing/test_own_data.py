"""A user's table or folder becomes a data set: columns, splits, duplicates, several labels, images, refusals."""

import csv
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reread.preprocessing.image_files import read_image
from reread.preprocessing.ingest import absent_classes
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.preprocessing.own_data import add_table, open_table, row_ids
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import TextRows
from reread.preprocessing.tables import read_table
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.storage.source import ROOT

WORDS = {"sport": "ball goal match team", "tech": "chip code data network", "food": "bread soup salt oven"}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def reviews(count=120):
    generator = random.Random(0)
    for number in range(count):
        label = list(WORDS)[number % 3]
        words = [generator.choice(WORDS[label].split()) for _ in range(8)]
        yield {"key": f"r{number}", "body": f"{' '.join(words)}. Number {number}.", "stars": label}


def write(rows, name="reviews.csv"):
    rows = list(rows)
    with open(name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if name.endswith("tsv") else ",")
        writer.writeheader()
        writer.writerows(rows)
    return Path(name)


def add(path, name="mine", **options):
    lines = []
    entry = add_table(name, open_table(path, **options), say=lines.append)
    return entry, lines


def add_lines(path, **options):
    lines = []
    return add_table("mine", open_table(path), say=lines.append, **options), lines


def test_columns_are_guessed_and_splits_are_balanced():
    table = open_table(write(reviews()))
    columns = table.columns
    assert (columns.content, columns.labels, columns.id, columns.kind, columns.task) == (
        ("body",), ("stars",), "key", "text", "single-label",
    )  # fmt: skip
    entry, lines = add(Path("reviews.csv"))
    assert lines == [] and entry.classes == ("food", "sport", "tech")
    assert entry.splits["test"] in range(15, 21) and entry.splits["validation"] in range(15, 21)
    data = open_data_set("mine")
    for split in range(3):
        assert np.ptp(np.bincount(data.labels[data.split == split])) <= 2
    again, _ = add(write(reversed(list(reviews())), "other.csv"), "again")
    assert again.version == entry.version  # the order of the table decides nothing


def test_a_guess_can_be_taken_back_and_other_columns_are_named():
    path = write([{**row, "film": f"film {number % 7}", "price": number} for number, row in enumerate(reviews())])
    guessed = open_table(path).columns
    assert (guessed.group, guessed.unused) == ("film", ("price",)) and "unused price" in guessed.lines()
    columns = open_table(path, group="none", identity="none").columns
    assert (columns.group, columns.id, set(columns.unused)) == (None, None, {"key", "film", "price"})
    with pytest.raises(InputError, match="'none'"):
        open_table(path, content=["none"])


def test_texts_of_several_columns_are_joined_in_the_order_given():
    rows = [{**row, "title": f"Title {number}" if number % 2 else ""} for number, row in enumerate(reviews())]
    entry, _ = add(write(rows), content=["title", "body"])
    texts = {document.id: document.text for document in open_data_set("mine").documents()}
    assert texts == {row["key"]: f"{row['title']}\n{row['body']}" if row["title"] else row["body"] for row in rows}
    assert "title, then body" in entry.source
    assert any(line.startswith("text ") and "title, then body" in line for line in open_table(
        Path("reviews.csv"), content=["title", "body"]).lines())  # fmt: skip
    # The version is that of the texts, however they came about.
    joined = [{"key": row["key"], "body": texts[row["key"]], "stars": row["stars"]} for row in rows]
    assert add(write(joined, "joined.csv"), "joined")[0].version == entry.version
    assert add(Path("reviews.csv"), "other", content=["body", "title"])[0].version != entry.version
    rows[3]["title"] = rows[3]["body"] = " "
    assert add(write(rows), content=["title", "body"])[0].dropped == {"with no text": 1}


def test_files_are_not_joined_and_a_column_is_named_once():
    path = write({**row, "file": f"{row['key']}.txt"} for row in reviews())
    for columns, named in ((["body", "file"], "files"), (["body", "body"], "twice"), (["body", "stars"], "'stars'")):
        with pytest.raises(InputError, match=named):
            open_table(path, content=columns, labels=["stars"])


def test_repeated_texts_and_labels_that_a_split_lacks_are_named():
    rows = [*reviews(40), *({**row, "key": f"again {row['key']}"} for row in reviews(4))]
    rows[-1]["stars"] = "food"
    _, lines = add(write(rows))
    assert [line.split(":")[0] for line in lines] == ["repeated", "warning"]
    assert "4 rows" in lines[0] and "1 text " in lines[1]
    assert absent_classes(open_data_set("mine")) == []
    splits = {"train": ["food", "tech"], "validation": ["food", "tech"], "test": ["food"]}
    labelled = ((split, label) for split, labels in splits.items() for label in labels)
    add(write({"body": f"{label} {split}", "stars": label, "split": split} for split, label in labelled))
    (line,) = absent_classes(open_data_set("mine"))
    assert "test" in line and "tech" in line


@pytest.mark.parametrize("name", ["reviews.tsv", "reviews.jsonl", "reviews.parquet"])
def test_every_format_gives_the_same_data_set(name):
    entry, _ = add(write(reviews()))
    if name.endswith("tsv"):
        write(reviews(), name)
    elif name.endswith("jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in reviews()))
    else:
        import pyarrow
        from pyarrow.parquet import write_table

        write_table(pyarrow.Table.from_pylist(list(reviews())), name)
    assert add(Path(name), "other")[0].version == entry.version


def test_json_lines_whose_first_row_has_no_label():
    first, *rest = reviews()
    del first["stars"]
    Path("reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (first, *rest)))
    entry, lines = add("reviews.jsonl")
    assert entry.classes == tuple(sorted(WORDS))
    assert "left out: 1 row with no label, the first is reviews.jsonl, line 1" in "\n".join(lines)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_labels_of_a_list_are_read_whole_and_what_is_no_list_is_refused(suffix):
    cells = [["men's health"], ["oil", "men's health"], [], ["5", "²"]]
    rows = [{"text": f"Text {number}.", "topics": cells[number % 4]} for number in range(80)]

    def table(rows, kind=suffix):
        path = Path(f"rows.{kind}")
        if kind == "csv":
            texts = [json.dumps(row["topics"]) if number % 2 else str(row["topics"]) for number, row in enumerate(rows)]
            write(({**row, "topics": text} for row, text in zip(rows, texts, strict=True)), path.name)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            import pyarrow
            from pyarrow.parquet import write_table

            write_table(pyarrow.Table.from_pylist(rows), path)
        return path

    entry, _ = add(table(rows))
    assert entry.task == "multi-label" and set(entry.classes) == {"men's health", "oil", "5", "²"}
    assert open_data_set("mine").labels.sum() == 20 * 5
    for wrong in () if suffix == "parquet" else ("oil", 5, {"a": 1}, [["nested"]]):  # there a column has one type
        with pytest.raises(InputError, match=r"line \d+, column 'topics'"):
            add(table([*rows[:20], {**rows[20], "topics": wrong}, *rows[21:]]), "wrong")


def test_labels_in_brackets_are_no_lists():
    entry, _ = add(write({**row, "stars": f"[{row['stars']}]"} for row in reviews()))
    assert entry.task == "single-label" and set(entry.classes) == {f"[{label}]" for label in WORDS}


def test_a_label_that_is_a_missing_value_is_left_out_and_counted():
    rows = list(reviews())
    for number, value in {3: "NaN", 4: "null", 5: "None", 6: "NA", 7: "NA"}.items():
        rows[number]["stars"] = value
    entry, lines = add(write(rows))
    assert set(entry.classes) == set(WORDS) and sum(entry.dropped.values()) == 5
    (line,) = (line for line in lines if "2 rows" in line)
    assert "if NA is a class, rename it in the table" in line and "line 8" in line
    # Of a folder, or of a column of 0 and 1, it is a name.
    flags = [
        {"body": row["body"], "None": int(number % 2), "tech": int(number % 3 == 0)} for number, row in enumerate(rows)
    ]
    entry, _ = add(write(flags), labels=["None", "tech"])
    assert entry.rows == 120 and set(entry.classes) == {"None", "tech"}


def test_labels_that_differ_only_in_case_or_spaces_are_named():
    rows = [
        {**row, "stars": ["sport", "SPORT", "the  food", "The food"][number % 4]}
        for number, row in enumerate(reviews())
    ]
    _, lines = add(write(rows))
    warnings = [line for line in lines if line.startswith("warning: the labels")]
    assert len(warnings) == 2 and "'SPORT' (30 rows), 'sport' (30 rows)" in warnings[0]
    assert "'The food' (30 rows), 'the  food' (30 rows)" in warnings[1]


def test_what_is_read_as_another_label_or_none_is_counted():
    rows = [{**row, "stars": row["stars"]} for row in reviews()]
    rows[7]["stars"], rows[10]["stars"], rows[20]["stars"] = "tech ", " tech", "none"
    entry, lines = add(write(rows))
    warnings = [line for line in lines if line.startswith("warning")]
    assert set(entry.classes) == {*WORDS, "none"} and len(warnings) == 2
    assert "2 rows" in warnings[0] and "'tech'" in warnings[0] and "line 9" in warnings[0]
    assert "(the spaces are removed, the rows kept)" in warnings[0]
    assert "'none' (1 row)" in warnings[1]
    # Of several labels: cells that are read as 0, and rows with no label at all.
    flags = [
        {"body": row["body"], "new": number % 2, "old": "" if number < 3 else number % 3 % 2}
        for number, row in enumerate(rows)
    ]
    _, lines = add(write(flags), labels=["new", "old"])
    assert [line for line in lines if "3 rows" in line and "'old'" in line and "line 2" in line]
    assert [line for line in lines if "40 rows without any label" in line and "line 2" in line]
    topics = ["a;b", "b;c", "a;c", "a", "a;b;c"]
    lists = [{"body": row["body"], "topics": topics[n % 5] if n > 4 else ""} for n, row in enumerate(rows)]
    entry, lines = add(write(lists), labels=["topics"])
    assert entry.rows == 120 and [line for line in lines if "5 rows without any label" in line]


def test_the_only_column_of_numbers_is_that_of_a_regression():
    rows = [{"body": row["body"], "score": number / 7} for number, row in enumerate(reviews())]
    rows[3]["score"], rows[4]["score"] = "", "NA"
    entry, _ = add(write(rows), task="regression")
    assert (entry.task, entry.classes, entry.rows) == ("regression", ("score",), 118)
    rows = [{**row, "price": number} for number, row in enumerate(rows)]
    with pytest.raises(InputError, match="no column looks like a label"):
        add(write(rows), task="regression")


def test_a_folder_is_no_fold():
    rows = [{"subject": f"Mail {number}", "body": row["body"], "folder": ["inbox", "spam"][number % 2]}
            for number, row in enumerate(reviews())]  # fmt: skip
    entry, _ = add(write(rows))
    assert entry.classes == ("inbox", "spam")


@pytest.mark.parametrize("name", ["bare.csv", "bare.tsv"])
def test_a_table_without_a_header_is_refused(name):
    mark = "\t" if name.endswith("tsv") else ","
    Path(name).write_text("".join(f"{row['body']}{mark}{row['stars']}\n" for row in reviews()))
    with pytest.raises(InputError, match="line 1.*'sport'.*--no-header"):
        add(Path(name))


def test_the_column_of_lists_all_columns_of_0_and_1_and_no_folds_are_guessed():
    rows = [
        {"text": row["body"], "intents": str([row["stars"]]), "fold": number % 5}
        for number, row in enumerate(reviews())
    ]
    columns = open_table(write(rows)).columns
    assert (columns.labels, columns.split, columns.unused) == (("intents",), None, ("fold",))
    rows = [
        {"id": number, "comment": row["body"], "toxic": int(number % 3 == 0), "threat": 0, "insult": number % 2}
        for number, row in enumerate(reviews())
    ]
    columns = open_table(write(rows)).columns
    assert (columns.labels, columns.task) == (("toxic", "threat", "insult"), "multi-label")
    rows = [{**row, "toxic": number % 2, "part": number % 2} for number, row in enumerate(reviews())]
    assert open_table(write(rows)).columns.labels == ("stars",)


def test_a_guessed_group_names_the_option_that_takes_it_back():
    path = write({**row, "subject": f"subject {number % 30}"} for number, row in enumerate(reviews()))
    (line,) = (line for line in open_table(path).lines() if line.startswith("group"))
    assert "subject" in line and "--group none" in line
    assert "group  subject" in open_table(path, group="subject").lines()


@pytest.mark.parametrize("first", ["channel", "toxic"])
def test_several_columns_of_0_and_1_are_the_labels_beside_another_of_two_values(first):
    rows = [
        {"comment_text": row["body"], "channel": ("web", "app")[number % 2], "toxic": int(number % 3 == 0)}
        | {"threat": 0, "insult": number % 2}
        for number, row in enumerate(reviews())
    ]
    rows = [{name: row[name] for name in sorted(row, key=lambda name: name != first)} for row in rows]
    columns = open_table(write(rows)).columns
    assert set(columns.labels) == {"toxic", "threat", "insult"} and columns.task == "multi-label"
    assert open_table(write([{**row, "insult": "x", "threat": "x"} for row in rows])).columns.labels == (first,)


@pytest.mark.parametrize("name", ["fold", "kfold"])
def test_folds_with_numbers_are_hinted_at(name):
    rows = [{**row, name: number % 5} for number, row in enumerate(reviews())]
    rows = [{"body": row["body"], "words": row["stars"], name: row[name]} for row in rows]
    table = open_table(write(rows))
    assert (table.columns.labels, table.columns.split) == (("words",), None)
    (hint,) = table.columns.hints
    assert f"'{name}'" in hint and "0 to 4" in hint and "--split" in hint and f"hint   {hint}" in table.lines()
    assert open_table(write({**row, name: "train"} for row in rows), split=name).columns.hints == ()


def test_subjects_of_messages_are_no_group_and_those_of_a_study_are():
    def group(count, value):
        path = write({**row, "subject": value(number)} for number, row in enumerate(reviews(count)))
        columns = open_table(path).columns
        assert len(columns.hints) == (columns.group is None)
        assert columns.group or ("'subject'" in columns.hints[0] and "--group subject" in columns.hints[0])
        return columns.group

    assert group(120, lambda number: f"Re: number {number}") is None
    assert group(120, lambda number: f"Re: number {max(5, number)}") is None  # six of one thread
    assert group(1200, lambda number: f"Re: number {number}") is None
    assert group(120, lambda number: f"s{number % 40}") == "subject"
    # Of 1,000 rows nearly every subject is another; later ones come again.
    assert group(3000, lambda number: f"s{number % 1500}") == "subject"
    path = write({**row, "patient": f"p{number}"} for number, row in enumerate(reviews()))
    assert open_table(path).columns.group is None and open_table(path, group="patient").columns.group == "patient"


def test_a_label_that_several_columns_could_be_is_a_guess_and_hinted_at():
    rows = [
        {"body": row["body"], "kind": row["stars"], "way": "xy"[number % 2], "rank": number % 4 or ""}
        for number, row in enumerate(reviews())
    ]
    columns = open_table(write(rows)).columns
    assert columns.labels == ("way",)
    (hint,) = columns.hints
    assert "kind (3 values)" in hint and "rank (3 values)" in hint and "--label" in hint
    assert open_table(Path("reviews.csv"), labels=["kind"]).columns.hints == ()
    assert open_table(write({"label": row["kind"], **row} for row in rows)).columns.hints == ()
    assert open_table(write({"body": row["body"], "way": row["way"]} for row in rows)).columns.hints == ()


def test_a_second_column_of_texts_is_hinted_at():
    path = write({"title": f"The title of {number}", **row} for number, row in enumerate(reviews()))
    (hint,) = open_table(path).columns.hints
    assert "--text title --text body" in hint
    assert open_table(path, content=["body"]).columns.hints == ()
    assert open_table(write({"title": "Always the same one", **row} for row in reviews())).columns.hints == ()


def test_numbers_with_a_decimal_comma_are_no_two_labels():
    rows = [{"body": row["body"], "price": f"{number % 9},{number % 7}5"} for number, row in enumerate(reviews())]
    columns = open_table(write(rows), labels=["price"]).columns
    assert (columns.task, columns.separator) == ("single-label", None)
    (hint,) = columns.hints
    assert "'price'" in hint and "--task regression" in hint and "decimal points" in hint
    assert open_table(Path("reviews.csv"), labels=["price"], task="multi-label").columns.separator == ","
    with pytest.raises(InputError, match=r"line 2, column 'price': '0,05' is no number.*decimal point"):
        add(Path("reviews.csv"), labels=["price"], task="regression")
    rows[5]["price"] = "1,2,3"
    assert open_table(write(rows), labels=["price"]).columns.separator == ","


def test_the_same_number_in_each_row_is_refused():
    rows = [{"body": row["body"], "price": "5" if number % 2 else "5.0"} for number, row in enumerate(reviews())]
    with pytest.raises(InputError, match=r"column 'price' has the same number in each row"):
        add(write(rows), labels=["price"], task="regression")
    rows[7]["price"] = "6"
    assert add(write(rows), labels=["price"], task="regression")[0].rows == 120


def test_groups_too_few_for_the_splits_are_named():
    rows = [{**row, "patient": number % 2} for number, row in enumerate(reviews())]
    with pytest.raises(InputError, match=r"the 2 groups of column 'patient' stay whole.*--group none"):
        add(write(rows))
    assert add(Path("reviews.csv"), group="none")[0].rows == 120


def test_quotation_marks_of_a_tsv_merge_no_rows():
    rows = [(f"Text {number} of it", "ab"[number % 2]) for number in range(200)]
    for number, text in {3: '"Open', 90: 'that closes "', 120: 'in "the" middle', 150: '"', 170: '"Whole"'}.items():
        rows[number] = (text, rows[number][1])
    Path("quoted.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]))
    table = [row for _, row in read_table(Path("quoted.tsv"))]
    assert len(table) == 200 and table[170]["text"] == "Whole"
    assert [table[number]["text"] for number in (3, 90, 120, 150)] == ['"Open', 'that closes "', 'in "the" middle', '"']
    Path("quoted.tsv").write_text('text\tlabel\nplain\ta\n"two\nlines"\tb\n')
    with pytest.raises(InputError, match="line 3 has 1 columns"):
        list(read_table(Path("quoted.tsv")))


@pytest.mark.parametrize("text", ['"Open', '"Two" words'])
def test_a_quotation_mark_of_a_csv_without_its_other_is_refused_with_the_line_of_its_row(text):
    lines = ["body,stars", "one,a", f"{text},b", "three,c", '"four",d']
    Path("open.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 3"):
        list(read_table(Path("open.csv")))


def test_a_damaged_parquet_file_is_one_line():
    """Bits flipped in its pages and in its description: read as before, or refused."""
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist(list(reviews())), "whole.parquet", write_page_checksum=True)
    whole, generator, refused = Path("whole.parquet").read_bytes(), random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        Path("damaged.parquet").write_bytes(damaged)
        said = ""
        try:
            list(read_table(Path("damaged.parquet")))
        except InputError as error:
            said = str(error)
        assert "\n" not in said
        refused += "damaged.parquet" in said
    assert refused > 100


@pytest.mark.parametrize("grouped", [False, True])
def test_the_files_are_those_that_add_data_set_writes(grouped):
    rows = [{**row, **({"group": f"g{number // 2}"} if grouped else {})} for number, row in enumerate(reviews(40))]
    rows += [{**rows[0], "key": "copy"}]
    entry, _ = add(write(rows))
    data = open_data_set("mine")
    about = About(entry.classes, entry.source, entry.licence, dropped=entry.dropped)
    plain = add_data_set("plain", TextRows(about, list(data.documents())))
    assert plain == entry


def test_splits_of_a_column_or_a_file_and_no_validation():
    rows = [{**row, "fold": "testing" if number % 4 == 0 else "Train"} for number, row in enumerate(reviews())]
    entry, _ = add(write(rows))
    assert entry.splits["test"] == 30 and 6 <= entry.splits["validation"] <= 12
    write(({"key": row["key"], "part": row["fold"]} for row in rows), "split.csv")
    write(reviews())
    other, _ = add(Path("reviews.csv"), "other", split="split.csv")
    assert other.version == entry.version


def test_a_file_of_splits_may_have_groups():
    rows = list(reviews())
    given = [
        {"key": row["key"], "split": ("train", "validation", "test")[number % 20 // 8], "patient": f"p{number // 4}"}
        for number, row in enumerate(rows)
    ]
    entry, _ = add(write([{**row, **placed} for row, placed in zip(rows, given, strict=True)]))
    write(given, "split.csv")
    other, _ = add(write(rows, "plain.csv"), "other", split="split.csv", group="patient")
    assert other.version == entry.version and other.groups == "stored"
    lines = open_table(Path("plain.csv"), split="split.csv", group="patient").lines()
    assert {"split  of split.csv", "group  of split.csv"} <= set(lines)
    write([*given[:-1], {**given[-1], "patient": ""}], "split.csv")
    with pytest.raises(InputError, match=r"split.csv.*group is empty"):
        add(Path("plain.csv"), "third", split="split.csv", group="patient")


def test_groups_stay_together_and_a_shared_one_is_refused():
    rows = [{**row, "patient": f"p{number // 6}"} for number, row in enumerate(reviews())]
    entry, _ = add(write(rows))
    assert entry.groups == "stored" and entry.splits["test"] % 6 == 0
    with pytest.raises(InputError, match="group 'p0'"):
        add(write({**row, "split": "test" if number == 0 else "train"} for number, row in enumerate(rows)))


def test_what_is_empty_or_in_two_splits_is_left_out_and_counted():
    rows = [{**row, "split": ["train", "validation", "test"][number // 40]} for number, row in enumerate(reviews())]
    rows[3]["body"], rows[4]["stars"], rows[5]["body"] = " ", "", rows[100]["body"].upper()
    entry, lines = add(write(rows))
    assert sum(entry.dropped.values()) == 3 and entry.splits == {"train": 37, "validation": 40, "test": 40}
    assert any("line 5" in line for line in lines) and any("line 6" in line for line in lines)
    assert not any(entry.leaks["normalised"].values())


@pytest.mark.parametrize("form", ["mark", "list", "columns"])
def test_several_labels_in_three_forms(form):
    rows = []
    for number, row in enumerate(reviews()):
        labels = [row["stars"], *(["tech"] if number % 5 == 0 and row["stars"] != "tech" else [])]
        cells = {"mark": "|".join(labels), "list": json.dumps(labels)}
        own = {name: int(name in labels) for name in WORDS} if form == "columns" else {"topics": cells[form]}
        rows.append({"key": row["key"], "body": row["body"], **own})
    entry, _ = add(write(rows), labels=list(WORDS) if form == "columns" else ())
    assert entry.task == "multi-label" and set(entry.classes) == set(WORDS)
    assert open_data_set("mine").labels.sum() == 120 + sum(1 for n in range(0, 120, 5) if n % 3 != 1)


def test_a_folder_per_class_of_texts_and_of_images():
    for number, row in enumerate(reviews()):
        file = Path("letters", row["stars"], f"{number}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row["body"], encoding="utf-8")
        picture = Path("photos", row["stars"], f"{number}.png")
        picture.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (6 + number % 2, 8, 3), np.uint8)
        Image.fromarray(pixels).save(picture)
    entry, _ = add(Path("letters"))
    assert entry.kind == "text" and entry.rows == 120
    with pytest.raises(InputError, match=r"\.png.*--size"):
        add(Path("photos"), "photos")
    table = open_table(Path("photos"))
    entry = add_table("photos", table, size=4)
    assert entry.kind == "image" and open_data_set("photos").images.shape == (120, 4, 4, 3)
    assert sorted(path.name for path in Path("data").iterdir()) == ["mine", "photos"]


def pictures(folder, count=8):
    for number in range(count):
        file = Path(folder, "ab"[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(file)
    return Path(folder)


def test_images_can_have_a_number():
    files = sorted(pictures("photos", 40).rglob("*.png"), key=lambda file: int(file.stem))
    rows = ({"file": str(file), "age": number / 2} for number, file in enumerate(files))
    entry, _ = add(write(rows), labels=("age",), task="regression")
    data = open_data_set("mine")
    assert (entry.kind, entry.classes, data.labels.dtype, data.labels.shape) == ("image", ("age",), np.float32, (40, 1))
    assert np.array_equal(data.images[:, 0, 0, 0], 2 * data.labels[:, 0])
    directory = prepare("mine", {})
    prepared = open_prepared(directory)
    training = prepared.labels[slice(*prepared.description["splits"]["train"])]
    assert prepared.description["target_mean"] == pytest.approx(training.mean())
    assert prepared.description["target_deviation"] == pytest.approx(training.std())
    # Another number is other content.
    rows = ({"file": str(file), "age": (number + 1) / 2} for number, file in enumerate(files))
    assert add(write(rows), labels=("age",), task="regression")[0].version != entry.version


@pytest.mark.parametrize("kind", ["image", "text"])
def test_a_table_whose_rows_are_all_left_out_is_refused(kind):
    files = sorted(map(str, pictures("photos").rglob("*.png")))
    column = "file" if kind == "image" else "text"
    table = open_table(write({column: file, "label": "NaN"} for file in files), labels=("label",))
    with pytest.raises(InputError, match="mine has no rows"):
        add_table("mine", table)
    assert not Path("data/mine").exists()


@pytest.mark.parametrize(("colours", "channels"), [("grey", 1), ("rgb", 3)])
def test_images_of_mixed_colours_are_refused_and_converted(colours, channels):
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    red.save(pictures("photos", 40) / "b" / "red.png")
    with pytest.raises(InputError, match=r"red\.png.*rgb.*grey.*--colours grey or --colours rgb"):
        add(Path("photos"))
    assert not Path("data/mine").exists()
    add_table("mine", open_table(Path("photos")), colours=colours)
    images = open_data_set("mine").images
    assert images.shape == (41, 8, 8, channels)
    expected = [[76]] if colours == "grey" else [[255, 0, 0]]  # 0.299 of red
    assert sum(np.array_equal(image, np.broadcast_to(expected[0], image.shape)) for image in images) == 1


@pytest.mark.parametrize("by_split", [False, True])
def test_what_is_skipped_in_a_folder_is_named(by_split):
    folder = pictures("photos/train" if by_split else "photos", 60)
    if by_split:
        pictures("photos/test", 20)
        for number, file in enumerate(sorted(Path("photos/test").rglob("*.png"))):
            Image.new("L", (8, 8), 200 + number).save(file)
    for number in range(12):
        (folder / f"loose {number:02}.png").write_bytes(b"")
    (folder / "a/dead.png").symlink_to("gone.png")
    (folder / "dead.png").symlink_to("gone.png")
    (folder / "nothing").mkdir()
    (folder / ".hidden").mkdir()
    (folder / "a/.DS_Store").write_bytes(b"")
    top = "train/" if by_split else ""
    _, lines = add(Path("photos"))
    skipped = [line for line in lines if line.startswith("skipped")]
    loose = ", ".join(f"{top}loose {number:02}.png" for number in range(10))
    assert skipped == [
        f"skipped files outside of a class's folder: 12 ({loose} and 2 more)",
        f"skipped links to nowhere: 2 ({top}dead.png, {top}a/dead.png)",
        f"skipped empty folders: 1 ({top}nothing)",
    ]
    assert open_data_set("mine").entry.classes == ("a", "b")


def test_animations_and_images_of_one_colour_are_named():
    folder, generator = Path("photos"), np.random.default_rng(0)
    for number in range(40):
        file = folder / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(file)
    Image.new("L", (8, 8), 7).save(folder / "a/plain.png")
    frames = [Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)) for _ in range(3)]
    frames[0].save(folder / "b/moving.gif", save_all=True, append_images=frames[1:])
    _, lines = add_lines(folder, colours="grey")
    assert [line for line in lines if "b/moving.gif" in line and "the first" in line]
    assert [line for line in lines if "one colour" in line and line.endswith(": 1 (a/plain.png)")]
    assert any(np.array_equal(image[..., 0], np.asarray(frames[0])) for image in open_data_set("mine").images)


@pytest.mark.parametrize("kind", ["equal pixels", "equal files", "equal texts"])
def test_a_set_of_equal_rows_is_refused(kind):
    folder = pictures("photos", 40)
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        if kind == "equal texts":
            file.unlink()
            file.with_suffix(".txt").write_text("The same.")
        else:
            level = number % 9 if kind == "equal pixels" else 1
            Image.new("L", (8, 8), 5).save(file, compress_level=level, dpi=(number + 1,) * 2 if level else None)
    if kind == "equal files":
        for file in folder.rglob("*.png"):
            file.write_bytes((folder / "a/0.png").read_bytes())
    with pytest.raises(InputError, match="40 images are equal" if kind == "equal pixels" else "photos: all 40 rows"):
        add(folder)
    assert not Path("data/mine").exists() and not Path("data.manifest.json").exists()


def test_a_text_among_images_and_a_picture_of_too_many_pixels_are_named():
    Path(pictures("mixed"), "a", "notes.txt").write_text("of no class")
    with pytest.raises(InputError, match=r"mixed.*notes\.txt"):
        add(Path("mixed"))
    Image.new("1", (20_000, 20_000)).save(pictures("huge") / "a" / "huge.png")
    with pytest.raises(InputError, match=r"huge\.png.*pixels"):
        add(Path("huge"))


@pytest.mark.parametrize("outside", ["absolute", "upward", "link"])
@pytest.mark.parametrize("kind", ["text", "image"])
def test_a_file_outside_of_the_tables_folder_is_refused(tmp_path, monkeypatch, kind, outside):
    (tmp_path / "table").mkdir()
    suffix = "txt" if kind == "text" else "png"
    for number, row in enumerate(reviews(12)):
        file = tmp_path / "table" / f"{number}.{suffix}"
        file.write_text(row["body"]) if kind == "text" else Image.new("L", (8, 8), number).save(file)
    secret = tmp_path / f"secret.{suffix}"
    shutil.copy2(tmp_path / f"table/3.{suffix}", secret)
    name = {"absolute": str(secret), "upward": f"../secret.{suffix}", "link": f"3.{suffix}"}[outside]
    if outside == "link":
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "table" / name).unlink()
        (tmp_path / "table" / name).symlink_to(secret)
    rows = [{"file": name if number == 3 else f"{number}.{suffix}", "label": "ab"[number % 2]} for number in range(12)]
    with pytest.raises(InputError, match="outside.*line 5"):
        add(write(rows, "table/rows.csv"))
    assert not Path("data").exists()


def test_a_link_in_a_folder_of_a_class_is_refused(tmp_path):
    (tmp_path / "secret.png").write_bytes((pictures("photos") / "a" / "0.png").read_bytes())
    Path("photos/a/link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(InputError, match=r"a/link\.png.*outside"):
        add(Path("photos"))
    Path("photos/a/link.png").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secret.png").rename(tmp_path / "elsewhere/secret.png")
    Path("photos/c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"c/secret\.png.*outside"):
        add(Path("photos"))


def test_an_image_of_16_bits_is_scaled_and_one_of_unknown_range_refused():
    deep = np.linspace(0, 65_535, 64).reshape(8, 8).astype(np.uint16)
    for number, suffix in enumerate(("png", "tif")):
        Image.fromarray(deep - number).save(pictures("photos", 40) / "a" / f"deep.{suffix}")
    _, lines = add(Path("photos"))
    assert any("2 images of 16 bits" in line and "65,535" in line for line in lines)
    images = open_data_set("mine").images[..., 0]
    (scaled,) = (image for image in images if np.array_equal(image, np.round(deep / 257)))
    assert scaled.max() == 255 and len(np.unique(scaled)) == 64
    for number, dtype in enumerate((np.int32, np.float32)):
        Image.fromarray(deep.astype(dtype)).save(f"photos/a/wide{number}.tif")
        with pytest.raises(InputError, match=rf"wide{number}\.tif.*32 bits"):
            add(Path("photos"), "wide")
        Path(f"photos/a/wide{number}.tif").unlink()


def test_broken_images_are_named_together_up_to_ten_and_a_missing_one_is_missing():
    folder = pictures("photos", 40) / "a"
    for number in range(12):
        (folder / f"broken{number:02}.png").write_bytes(b"no image")
        with pytest.raises(InputError) as error:
            add(Path("photos"))
        names = [f"a/broken{each:02}.png" for each in range(min(number + 1, 10))]
        assert re.findall(r"a/broken\d+\.png", str(error.value)) == names
    with pytest.raises(InputError, match=r"^photos/none\.png is missing"):
        read_image(Path("photos/none.png"), "photos/none.png")
    assert not Path("data/mine").exists()


@pytest.mark.parametrize("grouped", [False, True])
def test_images_keep_their_ids_which_change_no_version(grouped):
    rows = []
    for number in range(60):
        # Two of them are equal, in one split.
        Image.new("L", (4, 4), max(1, number)).save(Path(f"p{number}.png"))
        rows.append({"image": f"p{number}.png", "name": f"no {number}", "label": "ab"[max(1, number) % 2]})
    options = {"identity": "name"}
    if grouped:
        rows = [{**row, "patient": f"g{max(1, number) // 2}"} for number, row in enumerate(rows)]
    entry, _ = add(write(rows), **options)
    data = open_data_set("mine")
    assert row_ids(data) is not None and set(entry.files) == {"images.npy", "labels.npy", "split.npy"} | (
        {"groups.npy"} if grouped else set()
    )
    for place, name in enumerate(row_ids(data)):
        row = rows[int(name.removeprefix("no "))]
        assert data.images[place, 0, 0, 0] == np.asarray(Image.open(row["image"]))[0, 0]
        assert entry.classes[data.labels[place]] == row["label"]
        assert not grouped or data.group_names[place] == row["patient"]
    assert sorted(row_ids(data)) == sorted(row["name"] for row in rows)
    again, _ = add(Path("reviews.csv"), "again", identity="none")
    assert (again.version, again.files) == (entry.version, entry.files)
    # As a data set has it that was added before, or whose images another hand has replaced.
    Path("data/again/ids.json").write_text(Path("data/again/ids.json").read_text().replace(entry.version, "0" * 64))
    assert row_ids(open_data_set("again")) is None
    Path("data/again/ids.json").unlink()
    assert row_ids(open_data_set("again")) is None


def test_texts_have_their_ids():
    add(write(reviews()))
    data = open_data_set("mine")
    assert row_ids(data) == [document.id for document in data.documents()]


def test_the_orientation_of_a_photograph_is_applied():
    upright = np.zeros((8, 8), np.uint8)
    upright[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # stored as the camera was held: turn by 90 degrees clockwise
    Image.fromarray(np.rot90(upright)).save(pictures("photos", 40) / "a" / "turned.png", exif=exif)
    add(Path("photos"))
    assert any(np.array_equal(image[..., 0], upright) for image in open_data_set("mine").images)


def test_postscript_under_the_name_of_an_image_is_refused_and_starts_no_program(monkeypatch):
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n%%EOF\n"
    (pictures("photos") / "a" / "script.png").write_bytes(script)
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **_: started.append(arguments))
    with pytest.raises(InputError, match=r"script\.png is no image"):
        add(Path("photos"))
    assert started == []


def test_images_that_a_full_disk_has_no_room_for_are_refused_before_they_are_read(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        add(pictures("photos"))
    assert list(Path("data").iterdir()) == []


def test_a_broken_manifest_leaves_the_data_set_as_it_was():
    add(write(reviews()))
    before = Path("data/mine/documents.jsonl").read_bytes()
    Path("data.manifest.json").write_text("<<<<<<< HEAD")
    with pytest.raises(InputError, match="data.manifest.json"):
        add(write(reviews(90)))
    assert Path("data/mine/documents.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        ("body,stars\na,b,c\n", {}, "line 2 has 3 columns"),
        ("body,body\na,b\n", {}, "'body' twice"),
        ("body\na\n", {}, "line 1"),
        ("body,stars\n", {}, "no rows"),
        ("body,stars\nx,y\n", {"content": ["boddy"]}, "'boddy'.*'body'"),
        ("body,stars,split\nx,y,middle\n", {}, "line 2, column 'split'.*'middle'"),
        ("body,a,b\nx,0,1\ny,2,1\n", {"labels": ["a", "b"]}, "line 3, column 'a'.*'2'"),
        ("body,stars\nx,y\nz,y\n", {}, "one class"),
        ("body,stars\nx,y\nz,w\n", {"content": ["body"], "labels": ["body"]}, "'body'.*text.*label"),
        ("", {}, "bad.csv is empty"),
        ("body,title\nx,y\nz,w\nu,v\n", {"labels": ["title"]}, "'title' has another value in each of the 3 rows"),
        ("body,stars,split\nx,y,train\nz,w,dev\nu,y,dev\n", {}, "column 'split' names no test row: --split none"),
        ("body,stars,split\nx,y,test\nz,w,test\nu,y,dev\n", {}, "column 'split' names no train row"),
        ("subject,body\nx,y\nz,w\nu,v\n", {}, r"no column looks like a label.*subject 3, body 3\)"),
    ],
)
def test_a_fault_is_named_by_line_and_column(content, options, named):
    Path("bad.csv").write_text(content)
    with pytest.raises(InputError, match=named):
        add(Path("bad.csv"), **options)
    assert Manifest.load().datasets == {} and not Path("data/mine").exists()


def test_other_encodings_and_names_are_refused():
    Path("latin.csv").write_bytes("body,stars\nété,a\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.csv.*UTF-8"):
        add(Path("latin.csv"))
    write(reviews())
    for name in ("../runs", "imdb"):
        with pytest.raises(InputError, match="name"):
            add(Path("reviews.csv"), name)


def test_memory_does_not_grow_with_the_texts():
    """20 MB in rows of 30 kB, beside what Python and numpy take."""
    with open("large.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "stars"])
        for number in range(700):
            writer.writerow([f"{number} " + "word " * 6000, number % 2])
    code = (
        "import resource; from pathlib import Path; from reread.preprocessing.own_data import add_table, open_table\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "table = open_table(Path('large.csv'), content=['body'], labels=['stars']); before = peak()\n"
        "add_table('large', table); print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) < 12, done.stdout + done.stderr
