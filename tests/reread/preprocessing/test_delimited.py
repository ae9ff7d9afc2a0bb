"""Tables with another delimiter, encoding or quote, without a header, and files that are no table."""

import csv
import gzip
import random
import zipfile
from pathlib import Path

import pytest

from reread.preprocessing.delimited import Dialect
from reread.preprocessing.own_data import add_table, open_table
from reread.preprocessing.tables import read_table
from reread.storage.errors import InputError

WORDS = {"Käse": "brot müsli salz ofen", "Straße": "weg brücke fuß tor"}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(count=60):
    generator = random.Random(0)
    for number in range(count):
        label = list(WORDS)[number % 2]
        words = [generator.choice(WORDS[label].split()) for _ in range(6)]
        yield f"{' '.join(words)}, nicht; aber | Nummer {number}", label


def write(name, delimiter=",", encoding="utf-8", quote='"', header=True):
    lines = [*([("text", "label")] if header else []), *rows()]
    with open(name, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter, quotechar=quote).writerows(lines)
    return Path(name)


def add(path, name="mine", **dialect):
    return add_table(name, open_table(path, dialect=Dialect(**dialect)))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"delimiter": "~"}, {"delimiter": "~"}),
        ({"delimiter": "\t"}, {"delimiter": "tab"}),
        ({"delimiter": ";", "encoding": "cp1252"}, {"delimiter": ";", "encoding": "cp1252"}),
        ({"encoding": "utf-16"}, {"encoding": "utf-16"}),
        ({"encoding": "utf-8-sig"}, {"encoding": "utf-8"}),
        ({"quote": "'"}, {"quote": "'"}),
        ({"header": False}, {"header": False}),
    ],
)
def test_a_table_that_is_written_otherwise_gives_the_same_data_set(written, read):
    plain = add(write("plain.csv"), "plain")
    assert add(write("other.csv", **written), **read).version == plain.version


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"'])
def test_the_line_of_excel_above_the_header_names_the_delimiter(line):
    plain = add(write("plain.csv"), "plain")
    text = write("other.csv", delimiter=";").read_text(encoding="utf-8")
    Path("other.csv").write_text(f"{line}\r\n{text}", encoding="utf-8")
    assert add(Path("other.csv")).version == plain.version
    assert next(read_table(Path("other.csv")))[0] == "other.csv, line 3"
    Path("other.csv").write_text(f"{line}\ntext;label\none,a\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 3"):
        list(read_table(Path("other.csv")))


def test_a_tsv_may_be_quoted_or_have_another_delimiter():
    plain = add(write("plain.csv"), "plain")
    assert add(write("other.tsv", ";"), delimiter=";").version == plain.version
    Path("lines.tsv").write_text('text\tlabel\n"two\nlines"\tb\n\'a\ta\n')
    assert [row["text"] for _, row in read_table(Path("lines.tsv"), Dialect(quote='"'))] == ["two\nlines", "'a"]


def test_without_quotes_each_quotation_mark_is_of_the_text():
    lines = [f'{number} "open, {"ab"[number % 2]}' for number in range(60)]
    Path("open.csv").write_text("text,label\n" + "".join(f'"{line}\n' for line in lines))
    with pytest.raises(InputError, match="line 2.*--quote none"):
        list(read_table(Path("open.csv")))
    assert next(read_table(Path("open.csv"), Dialect(quote="none")))[1]["text"] == '"0 "open'


@pytest.mark.parametrize(("encoding", "named"), [("cp1252", "line 3 .*--encoding"), ("utf-16", "--encoding utf-16")])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_another_encoding_names_its_line_and_the_option(encoding, named, suffix):
    lines = ["text,label", "plain,a", "käse,b"]
    if suffix == "jsonl":
        lines = ['{"text": "plain"}', '{"text": "plain"}', '{"text": "käse"}']
    path = Path(f"other.{suffix}")
    path.write_text("\n".join(lines), encoding=encoding)
    with pytest.raises(InputError, match=named):
        list(read_table(path))
    assert "käse" in str(list(read_table(path, Dialect(encoding=encoding))))
    with pytest.raises(InputError, match=r"other\.\w+ is not ascii .*--encoding"):
        list(read_table(path, Dialect(encoding="ascii")))


def test_text_files_of_a_folder_have_the_encoding():
    for number, (text, label) in enumerate(rows()):
        file = Path("letters", label, f"{number}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="cp1252")
    with pytest.raises(InputError, match=r"0\.txt, line 1 .*--encoding"):
        add(Path("letters"))
    assert add(Path("letters"), encoding="cp1252").rows == 60


@pytest.mark.parametrize(
    ("lines", "dialect", "named"),
    [
        ("text;label\na;b\n", {"delimiter": ","}, "--delimiter ';'"),
        ("text~label\na~b\n", {}, "--delimiter"),
        ("text,label\na,b\n", {"delimiter": "|"}, "--delimiter ','"),
        ("text,label\nwell, well,b\n", {}, "line 2 has 3 columns and the header 2.*','.*--delimiter"),
    ],
)
def test_a_wrong_delimiter_is_named(lines, dialect, named):
    Path("other.csv").write_text(lines)
    with pytest.raises(InputError, match=named):
        list(read_table(Path("other.csv"), Dialect(**dialect)))


def test_a_header_may_have_a_delimiter_in_quotation_marks():
    Path("other.csv").write_text('"text, of the review";label\none, two, three;a\n')
    assert next(read_table(Path("other.csv")))[1] == {"text, of the review": "one, two, three", "label": "a"}


@pytest.mark.parametrize("first", ["A text number 0 of these,unique", "Short text,4.5", "Short text,sport"])
def test_a_missing_header_is_noticed_and_both_options_are_named(first):
    ends = {"unique": "ab", "4.5": ["1.5", "2.5"], "sport": ["sport", "tech"]}[first.split(",")[1]]
    Path("bare.csv").write_text(
        f"{first}\n" + "".join(f"A text number {n} of these,{ends[n % 2]}\n" for n in range(60))
    )
    with pytest.raises(InputError, match="line 1 .*--no-header.*--header"):
        open_table(Path("bare.csv"))
    assert len(list(read_table(Path("bare.csv"), Dialect(header=False)))) == 61
    columns = open_table(Path("bare.csv"), dialect=Dialect(header=False)).columns
    assert (columns.content, columns.labels) == (("1",), ("2",))
    assert open_table(Path("bare.csv"), dialect=Dialect(header=True)).columns.content == (first.split(",")[0],)


def test_questions_numbers_and_names_are_headers():
    answers = "".join(f"Answer {number}.,{number % 2}\n" for number in range(60))
    Path("survey.csv").write_text(f"What do you think of the course?,Grade\n{answers}")
    assert open_table(Path("survey.csv")).columns.labels == ("Grade",)
    Path("digits.csv").write_text("text,0,1\n" + "One.,0,1\nNone.,0,0\n" * 30)
    assert open_table(Path("digits.csv"), labels=["0", "1"]).columns.content == ("text",)


@pytest.mark.parametrize("kind", ["zip", "workbook", "gzip", "parquet"])
def test_a_file_of_another_format_under_the_name_of_a_table_is_named(kind):
    write("plain.csv")
    data = Path("plain.csv").read_bytes()
    if kind == "gzip":
        Path("other.csv").write_bytes(gzip.compress(data))
    elif kind == "parquet":
        Path("other.csv").write_bytes(b"PAR1" + data)
    else:
        with zipfile.ZipFile("other.csv", "w") as archive:
            archive.writestr("[Content_Types].xml" if kind == "workbook" else "plain.csv", data)
    named = {"zip": "zip archive.*plain.csv", "workbook": "Excel.*CSV", "gzip": "gzip", "parquet": "Parquet"}[kind]
    with pytest.raises(InputError, match=named):
        list(read_table(Path("other.csv")))


@pytest.mark.parametrize(
    ("option", "value"),
    [("delimiter", ""), ("delimiter", ";;"), ("delimiter", '"'), ("delimiter", "\n"), ("quote", "''"), ("quote", ""),
     ("encoding", "utf-9"), ("encoding", "base64"), ("encoding", "idna\0")],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(option, value):
    with pytest.raises(InputError, match=f"--{option}"):
        Dialect(**{option: value})


def test_an_option_of_another_format_is_refused():
    Path("rows.jsonl").write_text('{"text": "a"}\n')
    Path("rows.parquet").write_bytes(b"")
    Path("letters").mkdir()
    for path, dialect in (("rows.jsonl", {"delimiter": ";"}), ("rows.parquet", {"encoding": "cp1252"})):
        with pytest.raises(InputError, match=f"--{next(iter(dialect))}.*{path}"):
            read_table(Path(path), Dialect(**dialect))
    with pytest.raises(InputError, match="--no-header.*letters"):
        read_table(Path("letters"), Dialect(header=False))
