"""Tables of the library datasets: by the library itself, on what its save_to_disk writes; without it, one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from reread.preprocessing.hub import is_of_library, read_library
from reread.preprocessing.own_data import add_table, open_table
from reread.storage.errors import InputError

CLASSES = ("good", "bad")
MADE = """\
import sys
import datasets
features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["good", "bad"]))
def rows(first, last):
    of = range(first, last)
    return datasets.Dataset.from_dict({"text": [f"text {i}" for i in of], "label": [i % 2 for i in of]}, features)
datasets.DatasetDict(train=rows(0, 40), test=rows(40, 60)).save_to_disk(f"{sys.argv[1]}/films")
rows(0, 30).save_to_disk(f"{sys.argv[1]}/plain")
unknown = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, -1]}, features)
unknown.save_to_disk(f"{sys.argv[1]}/unknown")
pictures = datasets.Features(image=datasets.Image(), label=features["label"])
images = datasets.Dataset.from_dict({"image": [{"bytes": b"", "path": None}], "label": [0]}, pictures)
images.save_to_disk(f"{sys.argv[1]}/images")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", MADE, str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.unlocked
def test_splits_and_classes_are_those_of_the_library(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = open_table(saved / "films")
    assert (table.columns.content, table.columns.labels, table.columns.split) == (("text",), ("label",), "split")
    entry = add_table("films", table, say=print)
    assert (entry.rows, entry.splits["test"], sorted(entry.classes)) == (60, 20, sorted(CLASSES))
    where, row = next(iter(read_library(saved / "films")))
    assert where == f"{saved / 'films'}, train, row 1" and row == {"split": "train", "text": "text 0", "label": "good"}


@pytest.mark.unlocked
def test_rows_without_splits_have_no_such_column_and_an_unknown_class_is_none(saved):
    assert [row for _, row in read_library(saved / "plain")][1] == {"text": "text 1", "label": "bad"}
    assert [row["label"] for _, row in read_library(saved / "unknown")] == ["good", None]


@pytest.mark.unlocked
def test_images_and_what_the_library_cannot_read_are_refused(saved, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="column 'image' has image data: write its files to a folder per class"):
        next(iter(read_library(saved / "images")))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        next(iter(read_library(tmp_path)))


def test_without_the_library_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_dict.json").write_text("{}")
    for path, name in ((tmp_path, str(tmp_path)), (Path("hf://stanfordnlp/imdb"), "hf://stanfordnlp/imdb")):
        assert is_of_library(path)
        with pytest.raises(InputError) as error:
            open_table(path)
        assert str(error.value) == f"{name} needs Hugging Face's datasets: `pip install datasets`"
