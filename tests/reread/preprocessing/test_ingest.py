"""Making data/NAME: once, checked against the manifest, and never half."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.ingest import data_card, ingest
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.preprocessing.raw import About
from reread.preprocessing.raw_text import Document, TextRows
from reread.preprocessing.sources import SOURCES, digits, docstrings, embedded
from reread.storage.errors import InputError

ROOT = Path(__file__).parents[3]


class Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.data, self.manifest = path, path / "data", path / "data.manifest.json"

    def ingest(self, name: str, **settings):
        return ingest(name, self.data, self.manifest, self.path / "archives", **settings)

    def bytes(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.data / name).iterdir()}


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def corpus(*texts: str) -> TextRows:
    """A corpus of the class a and b in turn, three splits."""
    splits = ("train", "train", "validation", "test")
    documents = [Document(f"d{n}", (n % 2,), splits[n % 4], text) for n, text in enumerate(texts)]
    packages = docstrings.installed_versions()
    return TextRows(About(("a", "b"), "written by the test", "none", packages=packages), documents)


@pytest.fixture
def corpus_of(monkeypatch):
    """Set what the docstrings are, and which packages they are made of."""

    def set_to(version: str, *texts: str) -> None:
        monkeypatch.setattr(docstrings, "installed_versions", lambda: {"pandas": version, "scipy": "1.0"})
        monkeypatch.setattr(docstrings, "rows", lambda progress: corpus(*texts))

    return set_to


def test_digits_are_those_of_the_manifest_and_complete(folder):
    shutil.copy(ROOT / "data.manifest.json", folder.manifest)
    entry = folder.ingest("digits")
    assert entry == Manifest.load(ROOT / "data.manifest.json").entry("digits")
    data = open_data_set("digits", folder.data, folder.manifest)
    assert data.images.shape == (1797, 8, 8, 1) and data.images.max() == 255
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    from sklearn.datasets import load_digits

    levels = np.unique(data.images)
    assert len(levels) == 17, "one value for each of 0 to 16"
    ours = {
        (np.searchsorted(levels, image).tobytes(), int(label))
        for image, label in zip(data.images, data.labels, strict=True)
    }
    theirs = load_digits()
    assert ours == {
        (image.astype(np.int64)[..., None].tobytes(), int(label))
        for image, label in zip(theirs.images, theirs.target, strict=True)
    }
    shares = np.bincount(data.split) / len(data.split)
    assert shares == pytest.approx([0.70, 0.15, 0.15], abs=0.01)
    for label in range(10):
        assert np.bincount(data.split[data.labels == label]) / (data.labels == label).sum() == pytest.approx(
            [0.70, 0.15, 0.15], abs=0.02
        )


def test_what_is_there_is_not_made_again(folder, monkeypatch):
    entry = folder.ingest("digits")
    before = (folder.data / "digits" / "images.npy").stat().st_mtime_ns
    monkeypatch.setattr(digits, "rows", lambda progress: pytest.fail("made again"))
    assert folder.ingest("digits") == entry
    assert (folder.data / "digits" / "images.npy").stat().st_mtime_ns == before


def test_a_lost_folder_is_made_again_with_the_same_bytes(folder):
    folder.ingest("digits")
    before, manifest = folder.bytes("digits"), folder.manifest.read_bytes()
    shutil.rmtree(folder.data / "digits")
    folder.ingest("digits")
    assert folder.bytes("digits") == before and folder.manifest.read_bytes() == manifest


def test_edited_data_is_refused_and_left_as_it_is(folder):
    folder.ingest("digits")
    path = folder.data / "digits" / "labels.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"labels.npy is not the file .*remove .*digits and run 'make data'"):
        folder.ingest("digits")
    assert path.read_bytes() == content


def test_a_folder_that_the_manifest_does_not_know_is_left_alone(folder):
    (folder.data / "digits").mkdir(parents=True)
    (folder.data / "digits" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="remove the folder and run again"):
        folder.ingest("digits")
    assert folder.bytes("digits") == {"mine.txt": b"mine"} and not folder.manifest.exists()


def test_other_bytes_than_the_manifest_names_are_refused_by_file(folder):
    folder.ingest("digits")
    shutil.rmtree(folder.data / "digits")
    value = json.loads(folder.manifest.read_text())
    value["datasets"]["digits"]["files"]["labels.npy"]["sha256"] = "0" * 64
    folder.manifest.write_text(json.dumps(value))
    with pytest.raises(InputError, match="labels.npy has another sha256.*requirements.lock.*--accept-new-version"):
        folder.ingest("digits")
    assert list(folder.data.iterdir()) == [] and json.loads(folder.manifest.read_text()) == value


def test_an_interrupted_ingest_leaves_nothing(folder, monkeypatch):
    def interrupted(progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.ingest("digits")
    assert not folder.data.exists() and not folder.manifest.exists()


def test_a_changed_pin_is_a_new_version_that_must_be_accepted(folder, corpus_of):
    corpus_of("1.0", "One.", "Two.", "Three.", "Four.")
    old = folder.ingest("docstrings")
    before = folder.bytes("docstrings"), folder.manifest.read_bytes()
    corpus_of("1.1", "One.", "Two!", "Three.", "Four.", "Five.")
    with pytest.raises(InputError) as error:
        folder.ingest("docstrings")
    assert re.search(
        r"pandas 1.0 -> 1.1, documents.jsonl has another sha256, 1 documents added, 0 removed, 1 changed",
        str(error.value),
    )
    assert "scipy" not in str(error.value)
    assert (folder.bytes("docstrings"), folder.manifest.read_bytes()) == before
    lines = []
    new = folder.ingest("docstrings", accept_new_version=True, progress=lines.append)
    assert new.version != old.version and new.packages["pandas"] == "1.1" and new.rows == 5
    assert "1 documents added" in lines[-1]
    assert len(open_data_set("docstrings", folder.data, folder.manifest).labels) == 5


def test_an_edited_source_is_read_again_where_a_new_version_is_accepted(folder, corpus_of):
    corpus_of("1.0", "One.", "Two.", "Three.", "Four.")
    old = folder.ingest("docstrings")
    assert folder.ingest("docstrings", accept_new_version=True) == old
    corpus_of("1.0", "One.", "Two.", "Three.", "Four.", "Five.")
    assert folder.ingest("docstrings") == old
    new = folder.ingest("docstrings", accept_new_version=True)
    assert new.rows == old.rows + 1 and Manifest.load(folder.manifest).entry("docstrings") == new


def test_without_the_old_data_the_refusal_names_versions_and_counts(folder, corpus_of):
    corpus_of("1.0", "One.", "Two.", "Three.", "Four.")
    folder.ingest("docstrings")
    shutil.rmtree(folder.data / "docstrings")
    corpus_of("1.1", "One.", "Two.", "Three.", "Four.", "Five.")
    with pytest.raises(InputError, match="pandas 1.0 -> 1.1, .*, rows 4 -> 5"):
        folder.ingest("docstrings")
    assert list(folder.data.iterdir()) == []


def test_a_changed_pin_with_the_same_content_is_the_same_version(folder, corpus_of):
    corpus_of("1.0", "One.", "Two.", "Three.", "Four.")
    old = folder.ingest("docstrings")
    corpus_of("1.1", "One.", "Two.", "Three.", "Four.")
    assert folder.ingest("docstrings") == old


def test_an_unknown_data_set_is_refused_with_the_nearest(folder):
    with pytest.raises(InputError, match="'docstring': did you mean 'docstrings'"):
        folder.ingest("docstring")
    assert not folder.data.exists()


def test_sources_are_found_by_being_there():
    assert embedded() == ["digits", "docstrings"]
    made_when_needed = {"cifar10", "cifar100", "copying", "imdb", "mnist", "movie_reviews", "newsgroups20"}
    made_when_needed |= {"affine_mnist", "affnist", "multimnist"}
    assert set(SOURCES.available()) - set(embedded()) >= made_when_needed | {"chestmnist", "chestxray14"}


def test_the_card_has_what_a_reader_must_know(folder):
    entry = folder.ingest("digits")
    card = data_card(open_data_set("digits", folder.data, folder.manifest))
    assert card.startswith("# digits\n") and entry.version in card and entry.licence in card
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| ")]
    assert rows[0] == ["| class", "train", "validation", "test |"]
    columns = np.array([[int(cell.strip("| ")) for cell in row[1:]] for row in rows[2:12]])
    assert columns.sum(axis=0).tolist() == list(entry.splits.values())
    assert rows[12][0] == "| all rows" and rows[-2][0] == "| exact" and rows[-1][0] == "| normalised"


def test_the_card_counts_several_labels_each(folder):
    from reread.preprocessing.raw import add_data_set

    about = About(("a", "b"), "written by the test", "none", task="multi-label")
    splits = ("train", "train", "validation", "test")
    rows = [Document(f"d{n}", ((), (0,), (0, 1), (1,))[n], splits[n], f"Text {n}.") for n in range(4)]
    add_data_set("some", TextRows(about, rows), folder.data, folder.manifest)
    card = data_card(open_data_set("some", folder.data, folder.manifest))
    assert "| a | 1 | 1 | 0 |\n| b | 0 | 1 | 1 |\n| all rows | 2 | 1 | 1 |" in card and "multi-label" in card
