"""Data that ``add_data_set`` takes, and data that it refuses before anything is written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.manifest import Manifest, open_data_set
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.errors import InputError

ABOUT = About(("a", "b"), "written by the test", "none")
SPLITS = ("train", "train", "validation", "validation", "test", "test")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)


def documents(**changed) -> list[Document]:
    """Six documents; ``changed`` replaces fields of the second."""
    rows = [Document(f"d{row}", (row % 2,), split, f"Text number {row}.") for row, split in enumerate(SPLITS)]
    rows[1] = rows[1]._replace(**changed)
    return rows


@pytest.mark.parametrize("name", ["../runs", "..", "", "a/b", "my data", ".hidden", "a\nb", "a.b", 5, None])
def test_a_name_that_is_not_plain_touches_nothing(name):
    Path("runs").mkdir()
    Path("runs/result.json").write_text("{}")
    with pytest.raises(InputError, match="data set name") as caught:
        add_data_set(name, TextRows(ABOUT, documents()))
    assert "\n" not in str(caught.value)
    assert Path("runs/result.json").is_file() and list(Path().iterdir()) == [Path("runs")]


def test_a_wrong_task_does_not_reach_the_manifest():
    with pytest.raises(InputError, match="multilabel.*multi-label"):
        add_data_set("mine", TextRows(replace(ABOUT, task="multilabel"), documents()))
    assert Manifest.load().datasets == {} and not Path("data/mine").exists()


def test_a_data_set_of_the_same_name_is_replaced():
    add_data_set("mine", TextRows(ABOUT, documents()))
    entry = add_data_set("mine", TextRows(ABOUT, documents(text="Another.")))
    assert Manifest.load().entry("mine") == entry
    assert "Another." in [document.text for document in open_data_set("mine").documents()]


@pytest.mark.parametrize("classes", [("a", "a"), ("a", 1), ("a", " ")])
def test_classes_are_distinct_names(classes):
    with pytest.raises(InputError, match="class"):
        add_data_set("mine", TextRows(replace(ABOUT, classes=classes), documents()))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"labels": None}, "row 2.*label None"),
        ({"labels": (float("nan"),)}, "row 2.*label nan"),
        ({"labels": "a"}, "row 2.*label 'a'"),
        ({"split": "dev"}, "row 2.*'dev'"),
    ],
)
def test_what_is_no_document_is_named_by_row_and_field(changed, named):
    with pytest.raises(InputError, match=named):
        add_data_set("mine", TextRows(ABOUT, documents(**changed)))
    assert Manifest.load().datasets == {}


@pytest.mark.parametrize("labels", [1, np.int64(1), [1], np.array([1]), (np.int32(1),)])
def test_a_number_is_a_label_of_whatever_type_and_an_id(labels):
    plain = add_data_set("plain", TextRows(ABOUT, documents(id="7")))
    same = add_data_set("other", TextRows(ABOUT, documents(id=np.int64(7), labels=labels)))
    assert same.version == plain.version
    assert [document.labels for document in open_data_set("other").documents()].count((1,)) == 3


def test_labels_of_images_may_be_any_integers():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 2, 1), np.uint8)
    labels, split = np.arange(6) % 2, np.repeat(np.arange(3), 2)
    entry = add_data_set("photos", ImageRows(ABOUT, pixels, labels, split))
    assert entry.splits == {"train": 2, "validation": 2, "test": 2}
    for wrong in ({"labels": labels.astype(float)}, {"labels": labels - 1}, {"split": split + 300}):
        with pytest.raises(InputError, match="label|split"):
            add_data_set("photos", replace(ImageRows(ABOUT, pixels, labels, split), **wrong))
