"""Groups: from raw rows through the manifest to prepared arrays, and never in two splits."""

import json
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.manifest import Manifest, open_data_set, record
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import About, add_data_set, number_groups
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.raw_text import Document, TextRows
from reread.preprocessing.sources import docstrings, imdb
from reread.preprocessing.workers import Workers, use_workers
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared

ABOUT = About(("a", "b"), "written by the test", "none")
SPLITS = ("train",) * 6 + ("validation",) * 3 + ("test",) * 3


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with use_workers(Workers(1)):
        yield


def documents(groups) -> list[Document]:
    return [
        Document(f"d{row}", (row % 2,), split, f"Text number {row}.", group)
        for row, (split, group) in enumerate(zip(SPLITS, groups, strict=True))
    ]


def images(groups) -> ImageRows:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 2, 2, 1), np.uint8)
    split = np.repeat(np.arange(3, dtype=np.uint8), (6, 3, 3))
    return ImageRows(ABOUT, pixels, np.arange(12, dtype=np.int32) % 2, split, groups)


PATIENTS = [*"aabbcc", *"ddd", *"eff"]


@pytest.mark.parametrize("rows", [TextRows(ABOUT, documents(PATIENTS)), images(PATIENTS)], ids=["text", "image"])
def test_groups_travel_to_the_prepared_arrays(rows):
    entry = add_data_set("clinic", rows)
    assert entry.groups == "stored" and Manifest.load().entry("clinic") == entry
    data = open_data_set("clinic")
    numbers, names = data.groups()
    prepared = open_prepared(prepare("clinic", None))
    assert prepared.groups.dtype == np.int64 and prepared.groups.shape == (12,)
    raw = prepared.arrays["raw_indices"]
    assert [names[group] for group in prepared.groups] == [names[group] for group in numbers[raw]]
    if isinstance(rows, TextRows):
        by_id = {document.id: document.group for document in rows.documents}
        ids = [document.id for document in data.documents()]
        assert [names[group] for group in prepared.groups] == [by_id[ids[row]] for row in raw]
    else:
        by_pixels = dict(zip(map(np.ndarray.tobytes, rows.images), PATIENTS, strict=True))
        assert [names[group] for group in prepared.groups] == [
            by_pixels[image.tobytes()] for image in prepared.arrays["images"]
        ]


def test_groups_are_kept_where_rows_are_left_out():
    add_data_set("clinic", TextRows(ABOUT, documents(PATIENTS)))
    prepared = open_prepared(prepare("clinic", {"rows_per_class": 1}))
    numbers, _ = open_data_set("clinic").groups()
    assert len(prepared.groups) == 6 and (prepared.groups == numbers[prepared.arrays["raw_indices"]]).all()


def test_without_groups_there_is_no_array():
    assert add_data_set("clinic", TextRows(ABOUT, documents([None] * 12))).groups == ""
    assert "groups" not in json.loads(Path("data.manifest.json").read_text())["datasets"]["clinic"]
    assert open_prepared(prepare("clinic", None)).groups is None


@pytest.mark.parametrize("make", [lambda groups: TextRows(ABOUT, documents(groups)), images], ids=["text", "image"])
def test_a_group_in_two_splits_is_refused_by_name(make):
    with pytest.raises(InputError, match="clinic: group 'Ada' has rows in train and in test"):
        add_data_set("clinic", make(["Ada", *PATIENTS[1:-1], "Ada"]))
    assert not Path("data.manifest.json").exists() and list(Path("data").iterdir()) == []


def test_a_group_in_two_splits_is_refused_when_it_is_prepared(monkeypatch):
    """Groups that a source derives can change after the data was written."""
    ids = [f"pandas/{file}.py:f" for file in "aabbccdddeff"]
    rows = [document._replace(id=f"{key}{row}", group=None) for row, (document, key) in
            enumerate(zip(documents(PATIENTS), ids, strict=True))]  # fmt: skip
    entry = add_data_set("clinic", TextRows(About(("a", "b"), "", "", groups="docstrings"), rows))
    assert entry.groups == "docstrings"
    numbers, names = open_data_set("clinic").groups()
    assert sorted(names) == [f"pandas/{file}.py" for file in "abcdef"] and np.bincount(numbers).max() == 3
    monkeypatch.setattr(docstrings, "group_of", lambda document: "one file")
    with pytest.raises(InputError, match="'clinic': group 'one file' has rows in train and in validation"):
        prepare("clinic", None)
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


def test_a_manifest_that_names_no_source_of_groups_is_refused():
    entry = add_data_set("clinic", TextRows(ABOUT, documents(PATIENTS)))
    record("clinic", type(entry)(**{**vars(entry), "groups": "docstring"}))
    with pytest.raises(InputError, match="'docstring' in .*groups: did you mean 'docstrings'"):
        Manifest.load()


def test_numbers_are_in_the_order_of_the_first_rows():
    numbers, names = number_groups(["x", "a", "x", "b", "a"])
    assert numbers.tolist() == [0, 1, 0, 2, 1] and names == ["x", "a", "b"]


def test_the_groups_of_docstrings_are_their_source_files():
    document = Document("sklearn/tree/_classes.py:Tree.fit#2", (0,), "train", "Text.")
    assert docstrings.group_of(document) == "sklearn/tree/_classes.py"


def test_the_groups_of_imdb_are_runs_of_reviews_within_a_split_and_class():
    reviews = [("train/pos/1229_9.txt", "validation"), ("train/pos/1230_8.txt", "validation"),
               ("train/pos/1250_7.txt", "train"), ("train/neg/1250_1.txt", "train")]  # fmt: skip
    groups = [imdb.group_of(Document(name, (0,), split, "Text.")) for name, split in reviews]
    assert len(set(groups)) == 4
    neighbour = Document("train/pos/1251_9.txt", (1,), "train", "Text.")
    assert imdb.group_of(neighbour) == groups[2]


def test_numeric_ids_labels_and_groups_become_plain_values():
    rows = [
        document._replace(id=np.int64(row), labels=(np.int32(row % 2),), group=int(row // 3))
        for row, document in enumerate(documents(PATIENTS))
    ]
    add_data_set("clinic", TextRows(ABOUT, rows))
    first = next(iter(open_data_set("clinic").documents()))
    assert type(first.id) is str and first.labels in ((0,), (1,)) and first.group in set("0123")
