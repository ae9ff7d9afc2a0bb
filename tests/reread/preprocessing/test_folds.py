"""Folds of cross-validation: who is in which, and what is prepared of them."""

import numpy as np
import pytest

from reread.preprocessing.folds import Fold, assign, draw, folds_of, units_of
from reread.preprocessing.manifest import load_raw_rows, open_data_set
from reread.preprocessing.prepare import prepare, prepared_key
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.ledger import open_test_split, version_of
from reread.storage.prepared import SPLITS, open_prepared

ABOUT = About(classes=("bad", "good", "odd"), source="made by a test", licence="none")


@pytest.fixture
def notes(tmp_path):
    """30 documents of three classes, each with a word of its own; two are equal, and six are of one group."""
    documents = []
    for number in range(30):
        text = "The same note twice." if number in (3, 7) else f"Note word{'abcdefghij'[number // 10]}{number} is here."
        group = "film" if number in (0, 6, 9, 12, 15, 18) else f"g{number}"
        documents.append(Document(f"d{number}", (number // 10,), SPLITS[number % 3], text, group))
    place = (tmp_path / "data", tmp_path / "data.manifest.json")
    add_data_set("notes", TextRows(ABOUT, documents), *place)
    return place


def prepared_fold(place, fold, name="notes", **settings):
    key = {"count": fold.count, "seed": fold.seed, "number": fold.number}
    return prepare(name, {**settings, "fold": key}, *place, place[0].parent / "prepared")


def test_each_row_is_tested_once_and_validated_once_by_a_repetition():
    fold_of = np.array([0, 3, 1, 2, 0, 1])
    splits = np.array([fold.split(fold_of) for fold in folds_of(4, 0)])
    assert ((splits == 2).sum(axis=0) == 1).all() and ((splits == 1).sum(axis=0) == 1).all()
    # The fold that validates is the next one.
    assert splits[0].tolist() == [2, 0, 1, 0, 2, 1] and splits[3].tolist() == [1, 2, 0, 0, 1, 0]


def test_folds_have_their_share_of_each_class_and_another_seed_has_others():
    classes = np.repeat([0, 1, 2], [47, 23, 6])
    rows = np.arange(len(classes))
    first = assign(classes, rows, 5, 0)
    counts = np.array([np.bincount(first[classes == label], minlength=5) for label in range(3)])
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
    sizes = np.bincount(first)
    assert sizes.max() - sizes.min() <= 1
    assert (assign(classes, rows, 5, 0) == first).all() and (assign(classes, rows, 5, 1) != first).any()


def test_what_a_chain_of_groups_and_copies_connects_is_one_unit():
    content, groups = np.array([0, 1, 1, 2, 3, 4]), np.array([0, 0, 1, 1, 2, 3])
    units = units_of(content, groups)
    assert len(set(units[:4])) == 1 and len(set(units)) == 3
    assert (units_of(content, None) == content).all()


def test_groups_and_copies_stay_together_in_every_repetition(notes):
    data = open_data_set("notes", *notes)
    groups, _ = data.groups()
    texts = data.read(range(30))
    same = [row for row, text in enumerate(texts) if text == "The same note twice."]
    film = np.flatnonzero(np.bincount(groups)[groups] == 6)
    assert len(same) == 2 and len(film) == 6
    for seed in range(8):
        fold_of = draw(data, groups, 4, seed)
        assert len(set(fold_of[same])) == 1 and len(set(fold_of[film])) == 1
        assert sorted(set(fold_of)) == [0, 1, 2, 3]


def test_a_fold_is_prepared_of_its_own_training_rows_alone(notes):
    raw = open_data_set("notes", *notes)
    seen = []
    for fold in folds_of(3, 1):
        folder = prepared_fold(notes, fold, min_count=1)
        data = open_prepared(folder)
        assert data.description["fold"] == {"count": 3, "seed": 1, "number": fold.number}
        assert data.description["data_version"] == raw.entry.version and not (folder / "fold").exists()
        vocabulary = set(read_json(folder / "vocabulary.json"))
        with open_test_split("test", "p", version_of(data.description), {}, path=notes[1].with_name("reads.jsonl")):
            rows = {split: data.arrays["raw_indices"][data.rows(split)] for split in SPLITS}
            texts = load_raw_rows(data, SPLITS, *notes)
        for split in SPLITS:
            assert texts[split] == raw.read(rows[split].tolist())
            own = {word for text in texts[split] for word in text.lower().rstrip(".").split() if "word" in word}
            # No word that only rows of validation or test have is in the vocabulary.
            assert own <= vocabulary if split == "train" else not own & vocabulary
        seen += rows["test"].tolist()
    assert sorted(seen) == list(range(30))


def test_a_fold_of_images_has_the_mean_of_its_own_training_rows(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, 4, 4, 1), np.uint8)
    labels, split = np.arange(24, dtype=np.int32) % 2, np.arange(24, dtype=np.uint8) % 3
    place = (tmp_path / "data", tmp_path / "data.manifest.json")
    add_data_set("dots", ImageRows(About(("even", "odd"), "made by a test", "none"), images, labels, split), *place)
    data = open_prepared(prepared_fold(place, Fold(4, 0, 2), "dots"))
    start, stop = data.description["splits"]["train"]
    assert (start, stop) == (0, 12)
    assert data.description["mean"] == pytest.approx([data.arrays["images"][:12].mean() / 255])


def test_the_key_of_a_fold_is_its_own_and_that_of_the_whole_stays(notes):
    whole = prepared_key("notes", {}, notes[1])
    keys = {
        prepared_key("notes", {"fold": {"count": count, "seed": seed, "number": number}}, notes[1])
        for count, seed, number in ((5, 0, 1), (5, 0, 2), (5, 1, 1), (4, 0, 1))
    }
    assert len(keys | {whole}) == 5


def test_more_folds_than_a_class_has_rows_or_groups_are_refused(notes):
    data = open_data_set("notes", *notes)
    groups, _ = data.groups()
    assert len(set(draw(data, groups, 7, 0))) == 7
    # Class 'bad' has 10 rows, of which three are of one group and two are equal.
    with pytest.raises(InputError, match="'bad' is in 7 rows"):
        prepared_fold(notes, Fold(8, 0, 1))
    assert not list((notes[0].parent / "prepared").glob("[!.]*"))


def test_rows_of_a_number_are_spread_by_its_size(tmp_path):
    documents = [Document(f"d{row}", (float(row),), SPLITS[row % 3], f"Row {row} is here.") for row in range(20)]
    about = About(classes=("stars",), source="made by a test", licence="none", task="regression")
    place = (tmp_path / "data", tmp_path / "data.manifest.json")
    add_data_set("stars", TextRows(about, documents), *place)
    data = open_data_set("stars", *place)
    fold_of = draw(data, None, 4, 0)
    order = np.argsort(data.labels.reshape(-1))
    assert all(sorted(fold_of[order[start : start + 4]]) == [0, 1, 2, 3] for start in range(0, 20, 4))
