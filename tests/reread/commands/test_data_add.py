"""`reread data add`: what is refused, and two commands at once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from reread.commands.app import main
from reread.commands.data_add import try_lock_of
from reread.planning.trial import MARK
from reread.preprocessing.ingest import class_counts
from reread.preprocessing.manifest import open_data_set
from reread.storage.files import write_json
from reread.storage.locks import file_lock, is_held
from reread.storage.source import ROOT

WORDS = {"sport": "ball goal match team", "tech": "chip code data network"}


@pytest.fixture
def here(reread, tmp_path, monkeypatch):
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return reread


def write_table(name: str, count: int) -> str:
    labels = list(WORDS)
    rows = [f"{WORDS[labels[row % 2]]} number {row} of {name},{labels[row % 2]}" for row in range(count)]
    Path(name).write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return name


@pytest.mark.parametrize(("option", "value"), [("--size", "32"), ("--colours", "grey")])
def test_an_option_of_images_is_refused_for_texts(here, option, value):
    assert option in here("data", "add", write_table("mine.csv", 60), option, value, code=2)
    assert not Path("data").exists() and not Path("data.manifest.json").exists()


@pytest.mark.parametrize("name", ["Bad/Name", "digits"])
def test_a_name_is_refused_before_the_columns_are_shown(here, name):
    assert f"'{name}'" in here("data", "add", write_table("mine.csv", 60), "--name", name, code=2)


def test_the_next_step_is_named_with_what_it_needs(here):
    table = write_table("mine.csv", 60)
    said = here("data", "add", table)
    assert "Next: `reread try mine` needs params.yaml, which is not here" in said and "dvc add" not in said
    Path("params.yaml").touch()
    assert "Next: reread try mine\n" in here("data", "add", table)


def test_a_dry_run_shows_what_would_be_added_and_writes_nothing(here):
    path = Path(write_table("mine.csv", 60))
    with open(path, "a", encoding="utf-8") as file:
        file.write('"a [bold] text\nof two lines",sport\n,tech\nno label,\nnot known,NA\n')
    before = sorted(Path().rglob("*"))
    said = here("data", "add", "mine.csv", "--dry-run")
    assert "text   text" in said and "label  label" in said and "line 64" in said
    seen = json.loads(here("data", "add", "mine.csv", "--dry-run", "--json"))
    assert sorted(Path().rglob("*")) == before
    assert seen["labels"] == ["label"] and [row["id"] for row in seen["rows"]] == ["0", "1", "2"]
    here("data", "add", "mine.csv")
    data = open_data_set("mine")
    assert (seen["splits"], seen["dropped"]) == (data.entry.splits, data.entry.dropped)
    counts = {name: list(rows.values()) for name, rows in seen["classes"].items()}
    assert counts == dict(zip(data.entry.classes, class_counts(data).tolist(), strict=True))
    # Lines of the card: | sport | 21 | 5 | 5 |
    for name, row in {**counts, "all rows": seen["splits"].values()}.items():
        assert [name, *map(str, row)] in [re.split(r" {2,}", line.strip()) for line in said.splitlines()]


def test_options_of_the_text_of_a_table(here):
    rows = [f"{['Käse', 'Straße'][number % 2]};Text {number} für alle" for number in range(60)]
    Path("mine.csv").write_text("\n".join(rows), encoding="cp1252")
    said = here("data", "add", "mine.csv", code=2)
    assert "line 1" in said and "--encoding" in said
    options = ["--encoding", "cp1252", "--delimiter", ";"]
    assert "--no-header" in here("data", "add", "mine.csv", *options, code=2)
    assert not Path("data").exists()
    here("data", "add", "mine.csv", *options, "--no-header", "--text", "2", "--label", "1")
    data = open_data_set("mine")
    assert data.entry.rows == 60 and data.entry.classes == ("Käse", "Straße")


def test_a_dry_run_names_labels_that_a_split_lacks(here):
    with open(write_table("mine.csv", 60), "a", encoding="utf-8") as file:
        file.write("\nthe only text of it,rare\n")
    for dry_run in (["--dry-run"], []):
        assert "row has the label rare" in here("data", "add", "mine.csv", *dry_run)


def test_other_content_under_the_name_of_a_data_set_is_named(here):
    """With the version that it replaces, and what uses it; equal content is not."""
    path = write_table("mine.csv", 60)
    here("data", "add", path)
    before = open_data_set("mine").entry
    for number in range(2):
        write_json(Path(f"runs/{number:016x}/job.json"), {"model": "han", "network": {}, "data": "mine"})
    write_json(Path("reports/mine/plan.json"), {"data": {"mine": {}}})
    for options in (["--dry-run"], []):
        assert "replaces" not in here("data", "add", path, *options)
    write_table("other.csv", 80)
    for options in (["--dry-run"], []):
        (line,) = (
            line for line in here("data", "add", "other.csv", "--name", "mine", *options).splitlines()
            if line.startswith("replaces mine: ")
        )  # fmt: skip
        assert before.version[:12] in line and line.endswith("used by 2 runs, 1 report")
        assert (open_data_set("mine").entry == before) == bool(options)


def test_data_on_which_networks_are_tried_is_not_replaced(here):
    path = write_table("mine.csv", 60)
    here("data", "add", path)
    before = open_data_set("mine").entry
    write_table("mine.csv", 80)
    for command in (["add", path], ["remove", "mine", "--yes"]):
        with file_lock(try_lock_of("mine")):
            assert f"process {os.getpid()}" in here("data", *command, code=2)
        assert open_data_set("mine").entry == before
    here("data", "add", path, "--dry-run")
    here("data", "add", path)
    assert open_data_set("mine").entry.rows == 80


def test_the_lock_is_that_of_try(here):
    from importlib import import_module

    with import_module("reread.commands.try").alone("mine"):
        assert is_held(try_lock_of("mine"))


def test_the_name_of_an_experiment_of_another_hand_is_warned_of(here):
    path = write_table("mine.csv", 60)
    for name in ("params.yaml", "experiments/mine.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("title: Mine\n")
    said = here("data", "add", path)
    assert "experiments/mine.yaml" in said and "--name" in said and "Next: reread try" not in said
    Path("experiments/mine.yaml").write_text(f"{MARK}title: Mine\n")
    said = here("data", "add", path)
    assert "experiments/mine.yaml" not in said and "Next: reread try mine" in said


def test_images_are_converted_and_what_is_skipped_is_shown_in_the_preview(here):
    for number in range(40):
        Path(f"mine/{'ab'[number % 2]}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB" if number == 9 else "L", (8, 8), number).save(f"mine/{'ab'[number % 2]}/{number}.png")
    Path("mine/notes.txt").write_text("of no class")
    before = sorted(Path().rglob("*"))
    assert "notes.txt" in here("data", "add", "mine", "--colours", "grey", "--dry-run")
    assert sorted(Path().rglob("*")) == before
    assert "notes.txt" in here("data", "add", "mine", "--colours", "grey")
    assert open_data_set("mine").images.shape == (40, 8, 8, 1)


@pytest.mark.parametrize("fault", ["two rows of one id", "one class", "an image of another size"])
def test_a_dry_run_refuses_what_data_add_refuses(here, capsys, fault):
    options = []
    if fault == "an image of another size":
        for number in range(40):
            Path(f"mine/{'ab'[number % 2]}").mkdir(parents=True, exist_ok=True)
            side = 9 if number == 33 else 8
            Image.new("RGB", (side, side), (number, 0, 0)).save(f"mine/{'ab'[number % 2]}/{number}.png")
        path = "mine"
    else:
        path = write_table("mine.csv", 60)
        if fault == "one class":
            Path(path).write_text("".join(f"{line}\n" for line in Path(path).read_text().split("\n")[::2]))
        else:
            options = ["--id", "label", "--label", "text", "--text", "body"]
            Path(path).write_text("text,label,body\n" + "".join(f"{'ab'[n % 2]},same,no {n}\n" for n in range(60)))
    before, errors = sorted(Path().rglob("*")), []
    for dry_run in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            main(["data", "add", path, *options, *dry_run])
        assert ended.value.code == 2
        errors.append(capsys.readouterr().err)
        assert not dry_run or sorted(Path().rglob("*")) == before
    assert errors[0] == errors[1] and errors[0].startswith("error: ") and errors[0].count("\n") == 1


def test_two_at_once_leave_the_files_of_one(here, monkeypatch):
    """The first, of many rows, is still at work when the second begins."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    large, small = write_table("large.csv", 60_000), write_table("small.csv", 60)
    command = [sys.executable, "-m", "reread", "data", "add", "--name", "mine", large]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert "text" in first.stdout.readline()
        assert "'mine'" in here("data", "add", "--name", "mine", small, code=2)
        _, said = first.communicate()
    assert first.returncode == 0, said
    assert open_data_set("mine").entry.rows == 60_000
    assert "60000 rows" in Path("data/mine/card.md").read_text(encoding="utf-8")
    # Another name is free, and so is this one afterwards.
    here("data", "add", "--name", "mine", small)
    assert open_data_set("mine").entry.rows == 60


def test_a_replacement_that_was_killed_is_named_and_ended_by_the_same_command(here, monkeypatch):
    here("data", "add", write_table("mine.csv", 60))
    write_table("mine.csv", 80)
    killed = (
        "import os; from reread.commands.app import main; from reread.preprocessing import own_data\n"
        "own_data.record = lambda *_: os._exit(9); main(['data', 'add', 'mine.csv'])"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert subprocess.run([sys.executable, "-c", killed], capture_output=True).returncode == 9
    assert json.loads(here("data", "list", "--json"))[0]["files"] == "changed"
    assert "a command that replaced it was killed" in here("data", "mine", code=2)
    here("data", "add", "mine.csv")
    here("data", "mine")
    assert open_data_set("mine").entry.rows == 80
