"""The manifest, and what opening raw data refuses."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.manifest import DataSetEntry, FileEntry, Manifest, load_raw_rows, open_data_set, record
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import (
    About,
    add_data_set,
    count_leaks,
    digests_of,
    published_splits,
    split_by_quota,
)
from reread.preprocessing.raw_images import ImageRows, normalised_pixels
from reread.preprocessing.raw_text import Document, TextRows, normalised_text
from reread.storage.errors import InputError
from reread.storage.files import sha256_bytes
from reread.storage.prepared import open_prepared

ABOUT = About(classes=("cold", "warm"), source="written by the test", licence="none")
SPLITS = ("train", "train", "validation", "test")


def documents(count: int = 8, task: str = "single-label") -> list[Document]:
    labels = [(0,), (1,)] if task == "single-label" else [(0,), (), (0, 1)]
    return [
        Document(f"d{number}", labels[number % len(labels)], SPLITS[number // 2 % 4], f"Text {number}. It ends.")
        for number in range(count)
    ]


class Folder:
    """data/ and its manifest in a temporary folder."""

    def __init__(self, path: Path) -> None:
        self.data, self.manifest = path / "data", path / "data.manifest.json"

    def add(self, name: str, rows: TextRows | ImageRows) -> DataSetEntry:
        return add_data_set(name, rows, self.data, self.manifest)

    def open(self, name: str):
        return open_data_set(name, self.data, self.manifest)

    def write_by_hand(self, name: str, content: bytes, **changes) -> None:
        """A file that the manifest vouches for, whatever is in it."""
        path = self.data / name / "documents.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        about = FileEntry(sha256_bytes(content), len(content), content.count(b"\n"))
        fields = dict(kind="text", task="single-label", classes=("cold", "warm"), source="", licence="", version="0")
        splits = {"train": 2, "validation": 1, "test": 1}
        entry = DataSetEntry(**{**fields, "files": {"documents.jsonl": about}, "splits": splits, **changes})
        record(name, entry, self.manifest)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def line(**changes) -> bytes:
    row = {"id": "a", "labels": [0], "split": "train", "text": "A text."} | changes
    return json.dumps(row).encode() + b"\n"


def test_text_comes_back_as_it_was_given(folder):
    given = documents() + [Document("odd", (1,), "train", 'Line\none\u2028two "quoted" ½ 𝛼.')]
    entry = folder.add("weather", TextRows(ABOUT, given))
    data = folder.open("weather")
    assert sorted(data.documents()) == sorted(given)
    assert entry.splits == {"train": 5, "validation": 2, "test": 2}
    assert np.bincount(data.split).tolist() == [5, 2, 2]
    rows = list(data.documents())
    assert data.labels.tolist() == [row.labels[0] for row in rows]
    assert data.read([3, 0, 3]) == [rows[3].text, rows[0].text, rows[3].text]


def test_raw_rows_of_another_version_of_the_data_are_refused(folder, tmp_path):
    rows = [
        Document(f"d{number}", (number % 2,), SPLITS[number // 2 % 4], f"Text of row {number}. It ends.")
        for number in range(16)
    ]
    folder.add("weather", TextRows(ABOUT, rows))
    places = {"data_directory": folder.data, "manifest_path": folder.manifest}
    prepared = open_prepared(prepare("weather", {"min_count": 1}, **places, prepared_root=tmp_path / "prepared"))
    assert load_raw_rows(prepared, ["test"], **places)["test"]
    folder.add("weather", TextRows(ABOUT, [row._replace(text=row.text.replace("row", "line")) for row in rows]))
    with pytest.raises(InputError, match=f"{prepared.directory} .*'weather'"):
        load_raw_rows(prepared, ["test"], **places)


def test_bytes_and_version_do_not_depend_on_the_order_of_rows(folder):
    entry = folder.add("one", TextRows(ABOUT, documents()))
    other = folder.add("other", TextRows(ABOUT, documents()[::-1]))
    assert entry == other
    changed = documents()
    changed[3] = changed[3]._replace(text="Another text. It ends.")
    assert folder.add("other", TextRows(ABOUT, changed)).version != entry.version
    assert folder.open("other").entry != entry


def test_image_order_does_not_matter_either(folder):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (8, 3, 4, 1), dtype=np.uint8)
    labels, split = np.arange(8, dtype=np.int32) % 2, np.array([0, 0, 0, 0, 1, 1, 2, 2], dtype=np.uint8)
    entry = folder.add("one", ImageRows(ABOUT, images, labels, split))
    order = generator.permutation(8)
    assert folder.add("other", ImageRows(ABOUT, images[order], labels[order], split[order])) == entry
    data = folder.open("one")
    assert isinstance(data.images, np.memmap)
    rows = {image.tobytes(): (label, part) for image, label, part in zip(images, labels, split, strict=True)}
    for image, label, part in zip(data.images, data.labels, data.split, strict=True):
        assert rows[image.tobytes()] == (label, part)
    assert np.all(np.diff(data.split.astype(int)) >= 0), "rows stand in split order"


def test_several_labels_a_row(folder):
    about = About(("cold", "warm"), "", "", task="multi-label")
    folder.add("text", TextRows(about, documents(12, "multi-label")))
    encoded = folder.open("text").labels
    assert encoded.dtype == np.uint8 and encoded.shape == (12, 2)
    assert encoded.sum(axis=0).tolist() == [8, 4] and (encoded.sum(axis=1) == 0).sum() == 4
    images = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    labels = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.uint8)
    folder.add("image", ImageRows(about, images, labels, np.array([0, 0, 1, 2], dtype=np.uint8)))
    data = folder.open("image")
    assert data.entry.task == "multi-label" and sorted(data.labels.tolist()) == sorted(labels.tolist())


def test_the_manifest_is_the_same_after_a_round_trip(folder):
    folder.add("weather", TextRows(ABOUT, documents()))
    before = folder.manifest.read_bytes()
    manifest = Manifest.load(folder.manifest)
    manifest.save()
    assert folder.manifest.read_bytes() == before and before.endswith(b"}\n")


def test_an_unknown_name_is_refused_with_the_nearest(folder):
    folder.add("weather", TextRows(ABOUT, documents()))
    with pytest.raises(InputError, match="no data set 'wether' in .*: did you mean 'weather'"):
        folder.open("wether")
    with pytest.raises(InputError, match="make data"):
        open_data_set("weather", folder.data, folder.data / "none.json")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[1]",
        '{"schema": 2, "datasets": {}}',
        '{"schema": 1, "datasets": {"a": null}}',
        '{"schema": 1, "datasets": {"a": {"kind": "t"}}}',
    ],
)
def test_a_broken_manifest_is_named(folder, content):
    folder.manifest.write_text(content)
    with pytest.raises(InputError, match="data.manifest.json"):
        Manifest.load(folder.manifest)


@pytest.mark.parametrize(("field", "value"), [("files", {}), ("files", {"a": 1}), ("classes", 3), ("splits", None)])
def test_an_entry_that_could_not_be_verified_is_refused(folder, field, value):
    folder.add("weather", TextRows(ABOUT, documents()))
    manifest = json.loads(folder.manifest.read_text())
    manifest["datasets"]["weather"][field] = value
    folder.manifest.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="data.manifest.json, data set 'weather': .*restore the file from git"):
        Manifest.load(folder.manifest)


def test_missing_data_says_what_makes_it(folder):
    folder.add("weather", TextRows(ABOUT, documents()))
    path = folder.data / "weather" / "documents.jsonl"
    path.rename(folder.data / "kept")
    with pytest.raises(InputError, match="documents.jsonl is missing: .*make data"):
        folder.open("weather")
    path.parent.rmdir()
    with pytest.raises(InputError, match="weather is missing: add it again by `reread data add`"):
        folder.open("weather")


def test_an_edit_of_equal_size_and_time_is_found(folder):
    entry = folder.add("weather", TextRows(ABOUT, documents()))
    path = folder.data / "weather" / "documents.jsonl"
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"Text 3", b"Text 4"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    with pytest.raises(
        InputError, match="documents.jsonl is not the file .* remove .*weather and add it again by `reread data add`"
    ) as error:
        folder.open("weather")
    digest, expected = sha256_bytes(path.read_bytes()), entry.files["documents.jsonl"].sha256
    assert digest[:12] in str(error.value) and expected[:12] in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line() + b'{"id": "b", "text": "\xff"}\n', "line 2: invalid UTF-8 at byte 21"),
        (line() + b"{\n", "line 2: not valid JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not valid JSON"),
        (b'{"labels": [' + b"9" * 5000 + b"]}\n", "line 1: not valid JSON"),
        (line(id="\ud800"), "line 1: the id .* a character that UTF-8 cannot encode"),
        (line(id=7), "line 1: id is 7: it must be a string"),
        (line(text=None), "line 1: text is None"),
        (line(group="g"), "line 1: a document has exactly the fields"),
        (line() + line(id="b", extra=1), "line 2: a document has exactly the fields"),
        (line(text=" \n"), "line 1: .*'a' is empty"),
        (line(split="dev"), "split 'dev'"),
        (line(labels=[2]), "label 2 .* not a class number"),
        (line(labels=[True]), "label True"),
        (line(labels=[0, 1]), "has 2 labels"),
        (line(labels=[]), "has 0 labels"),
        (line(labels=0), "labels is 0: it must be a list"),
    ],
)
def test_bad_rows_are_refused_in_a_line(folder, content, message):
    folder.write_by_hand("bad", content)
    with pytest.raises(InputError, match=message) as error:
        list(folder.open("bad").documents())
    assert "documents.jsonl" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "weather has no rows"),
        ([Document("a", (0,), split, "Text.") for split in SPLITS[1:]], "two rows have the id 'a'"),
        ([Document(split, (0,), split, "Text.") for split in SPLITS[1:]], "only one class"),
        (documents() + [Document("e", (0,), "train", "")], "weather, row 9: document 'e' is empty"),
        (documents() + [Document("e", (0,), "train", "\ud800")], "a character that UTF-8 cannot encode"),
        (documents() + [Document("e", (5,), "train", "Text.")], "label 5"),
        (documents() + [Document("e", (0,), "train", None)], "weather, row 9: text is None"),
        (documents() + [Document("e", (0,), "train", float("nan"))], "weather, row 9: text is nan"),
        (documents() + [Document("e", (0.0,), "train", "Text.")], "weather, row 9: label 0.0"),
        (documents() + [Document(None, (0,), "train", "Text.")], "weather, row 9: id is None"),
        (
            documents() + [Document("e", (0,), "train", "Text.", "film")],
            "row 9: .* every row a group, or none",
        ),
    ],
)
def test_bad_rows_are_not_written(folder, rows, message):
    with pytest.raises(InputError, match=message):
        folder.add("weather", TextRows(ABOUT, rows))
    assert not folder.manifest.exists() and list(folder.data.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((4, 2, 2), np.uint8)}, "images are uint8"),
        ({"images": np.zeros((4, 2, 2, 1), np.float32)}, "images are uint8"),
        ({"labels": np.array([0, 1, 0, 2], np.int32)}, "outside 0 to 1"),
        ({"labels": np.array([0, -1, 0, 1], np.int32)}, "outside 0 to 1"),
        ({"labels": np.array([0, 1], np.int32)}, "labels are int32"),
        ({"labels": np.zeros(4, np.int32)}, "only one class"),
        ({"split": np.array([0, 1, 2, 3], np.uint8)}, "split is outside"),
        ({"split": np.array([0, 1, 1, 1], np.uint8)}, r"no rows in split 'test' \(train 1, validation 3, test 0\)"),
    ],
)
def test_bad_images_are_not_written(folder, change, message):
    good = {
        "images": np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1),
        "labels": np.array([0, 1, 0, 1], np.int32),
        "split": np.array([0, 0, 1, 2], np.uint8),
    }
    with pytest.raises(InputError, match=message):
        folder.add("pictures", ImageRows(ABOUT, **(good | change)))
    assert not folder.manifest.exists() and list(folder.data.iterdir()) == []


def test_pickled_arrays_are_not_opened(folder):
    images, labels = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1), np.array([0, 1, 0, 1], np.int32)
    entry = folder.add("pictures", ImageRows(ABOUT, images, labels, np.array([0, 0, 1, 2], np.uint8)))
    path = folder.data / "pictures" / "labels.npy"
    np.save(path, np.array([{}, {}, {}, {}], dtype=object), allow_pickle=True)
    about = FileEntry(sha256_bytes(path.read_bytes()), path.stat().st_size, 4)
    changed = {**entry.to_json(), "files": {**entry.to_json()["files"], "labels.npy": vars(about)}}
    record("pictures", DataSetEntry.from_json(changed, "test"), folder.manifest)
    with pytest.raises(InputError, match=r"labels.npy is not a plain .npy array"):
        folder.open("pictures")


def test_a_document_of_a_million_words_just_works(folder):
    text = "word " * 1_000_000
    folder.add("long", TextRows(ABOUT, [*documents(), Document("long", (0,), "train", text)]))
    assert max(len(document.text) for document in folder.open("long").documents()) == len(text)


def test_leaks_are_counted_by_distinct_text():
    texts = ["Same.", "same", "Same.", "other", "SAME!"]
    split = np.array([0, 1, 2, 0, 2], np.uint8)
    exact = digests_of(map(str.encode, texts))
    assert count_leaks(exact, split) == {"train-validation": 0, "train-test": 1, "validation-test": 0}
    normalised = digests_of(normalised_text(text).encode() for text in texts)
    assert count_leaks(normalised, split) == {"train-validation": 1, "train-test": 1, "validation-test": 1}
    dark = np.array([[0, 10], [20, 40]], np.uint8)
    assert normalised_pixels(dark) == normalised_pixels(dark * 2 + 50) != normalised_pixels(dark[::-1])


def test_whole_groups_go_to_splits_by_quota():
    groups = {f"file{number}": 1 + number % 7 for number in range(300)}
    splits = split_by_quota(groups, {"test": 0.15, "validation": 0.15})
    shares = {split: sum(groups[name] for name in groups if splits[name] == split) for split in ("test", "validation")}
    total = sum(groups.values())
    assert all(0.14 * total <= rows <= 0.15 * total for rows in shares.values())
    assert splits == split_by_quota(dict(reversed(groups.items())), {"test": 0.15, "validation": 0.15})
    assert split_by_quota({"all": 10}, {"test": 0.15}) == {"all": "train"}
    # A group that fills the quota belongs to it; which groups do is not a matter of their names' order.
    splits = split_by_quota(dict.fromkeys("abcdefghijklmnopqrst", 1), {"test": 0.15})
    held = [name for name in splits if splits[name] == "test"]
    assert len(held) == 3 and sorted(held) != ["a", "b", "c"]


def test_a_tenth_of_the_published_training_split_is_for_validation_by_content():
    images = np.arange(20_000, dtype=np.int64)[:, None]
    splits = published_splits(images, 19_000)
    assert set(splits[19_000:]) == {2} and set(splits[:19_000]) == {0, 1}
    assert np.mean(splits[:19_000] == 1) == pytest.approx(0.1, abs=0.005)
    assert np.array_equal(published_splits(images[18_999::-1], 19_000), splits[18_999::-1])
