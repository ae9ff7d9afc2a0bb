import functools
import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reread import kinds
from reread.planning.validation import read
from reread.preprocessing import documents
from reread.preprocessing import prepare as prepare_module
from reread.preprocessing.manifest import DataSetEntry, FileEntry, record
from reread.preprocessing.prepare import prepare, prepared_key, summary
from reread.preprocessing.text import number as words_as_numbers
from reread.preprocessing.text import segment
from reread.preprocessing.vocabulary import word_index
from reread.storage.errors import InputError
from reread.storage.files import read_json, sha256_file
from reread.storage.numeric import numeric_digest
from reread.storage.prepared import SPLITS, open_prepared
from tests.rooms import copy_rooms

ROOT = Path(__file__).parents[3]
CLASSES = ("cats", "dogs", "birds")
WHOLE = {"length_quantile": {"words": 1, "sentences": 1}, "min_count": 1}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty project root: data/, data.manifest.json and prepared/ are in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record_files(name, kind, task, classes, splits):
    folder = Path("data") / name
    files = {
        path.name: FileEntry(sha256_file(path), path.stat().st_size, sum(splits.values())) for path in folder.iterdir()
    }
    version = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    record(name, DataSetEntry(kind, task, tuple(classes), "a test", "none", version, files, splits))


def write_corpus(rows, name="corpus", task="single-label", classes=CLASSES):
    """``rows``: (split, labels, text)."""
    folder = Path("data") / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": f"document {number}", "labels": labels, "split": split, "text": text}) + "\n"
        for number, (split, labels, text) in enumerate(rows)
    ]
    (folder / "documents.jsonl").write_text("".join(lines))
    record_files(name, "text", task, classes, {part: sum(row[0] == part for row in rows) for part in SPLITS})


# Sentences of 2, 3 and 4 words and documents of 1, 2 and 3 sentences in the training split; "!" is a word.
HAND_MADE = [
    ("test", [1], "Cats run off here now! One! Two! Three dogs bark!"),
    ("train", [0], "Cats run! Dogs do run!"),
    ("train", [1], "Dogs run off!"),
    ("validation", [0], "Cats!"),
    ("train", [0], "Cats! Cats! Dogs do!"),
    ("test", [2], "日本 bark"),
]


def random_corpus(rows=200, seed=5):
    generator = np.random.default_rng(seed)
    corpus = []
    for number in range(rows):
        sentences = [
            " ".join(f"w{word}" for word in generator.zipf(1.6, size=generator.integers(1, 12)) % 300) + "."
            for _ in range(generator.integers(1, 9))
        ]
        corpus.append((SPLITS[(0, 0, 0, 1, 2)[number % 5]], [int(generator.integers(3))], " ".join(sentences)))
    return corpus


def test_a_hand_made_corpus_whole(place):
    write_corpus(HAND_MADE)
    prepared = open_prepared(prepare("corpus", WHOLE))
    assert prepared.description["splits"] == {"train": [0, 3], "validation": [3, 4], "test": [4, 6]}
    assert prepared.labels.tolist() == [0, 1, 0, 0, 1, 2]
    assert read_json(prepared.directory / "vocabulary.json") == [
        "<pad>", "<unk>", "!", "cats", "dogs", "run", "do", "off",
    ]  # fmt: skip
    assert prepared.arrays["tokens"].tolist() == [
        3, 5, 2, 4, 6, 5, 2,
        4, 5, 7, 2,
        3, 2, 3, 2, 4, 6, 2,
        3, 2,
        3, 5, 7, 1, 1, 2, 1, 2,
        1, 1, 1,
    ]  # fmt: skip
    assert prepared.first_words.tolist() == [0, 7, 11, 18, 20, 28, 31]
    assert prepared.arrays["word_counts"].tolist() == [
        [3, 4, 0], [4, 0, 0], [2, 2, 3], [2, 0, 0], [4, 2, 2], [3, 0, 0],
    ]  # fmt: skip
    assert prepared.arrays["sentence_counts"].tolist() == [2, 1, 3, 1, 3, 1]
    assert prepared.arrays["raw_indices"].tolist() == [1, 2, 4, 3, 0, 5]
    assert {array.dtype for name, array in prepared.arrays.items() if name != "raw_indices"} == {np.dtype(np.int32)}
    cut = prepared.description["cut"]
    assert cut["train"]["words_dropped"] == cut["train"]["documents_cut"] == cut["train"]["words_unknown"] == 0
    # Six words of "Cats run off here now !" are cut to four, and "Three dogs bark !" is the fourth sentence.
    assert cut["test"] == {
        "documents": 2,
        "documents_cut": 1,
        "documents_cut_share": 0.5,
        "sentences": 5,
        "sentences_dropped": 1,
        "sentences_kept_share": 0.8,
        "words": 17,
        "words_dropped": 6,
        "words_kept_share": round(11 / 17, 6),
        "words_unknown": 6,
        "words_unknown_share": round(6 / 11, 6),
    }
    shown = read_json(prepared.directory / "example_documents.json")
    assert shown == [
        {
            "row": 4,
            "id": "document 0",
            "words": [["cats", "run", "off", "here"], ["one", "!"], ["two", "!"]],
        },
        {"row": 5, "id": "document 5", "words": [["日", "本", "bark"]]},
    ]


def test_each_level_is_cut_at_its_own_quantile_of_the_training_split(place):
    write_corpus(HAND_MADE)
    settings = {"length_quantile": {"words": 0.5, "sentences": 0.6}, "min_count": 3}
    prepared = open_prepared(prepare("corpus", settings))
    # Words a sentence in the training split: 2 2 3 3 4 4; sentences a document: 1 2 3.
    assert prepared.description["lengths"] == {
        "words": {"quantile": 0.5, "kept": 3, "longest": 4},
        "sentences": {"quantile": 0.6, "kept": 2, "longest": 3},
    }
    assert read_json(prepared.directory / "vocabulary.json") == ["<pad>", "<unk>", "!", "cats", "dogs", "run"]
    assert prepared.arrays["word_counts"].tolist() == [[3, 3], [3, 0], [2, 2], [2, 0], [3, 2], [3, 0]]
    assert prepared.arrays["tokens"][:11].tolist() == [3, 5, 2, 4, 1, 5, 4, 5, 1, 3, 2]
    cut = prepared.description["cut"]["train"]
    assert (cut["documents_cut"], cut["sentences_dropped"], cut["words_dropped"]) == (3, 1, 5)
    assert (prepared.directory / "lengths.csv").read_text() == (
        "level,length,count\nwords,2,2\nwords,3,2\nwords,4,2\nsentences,1,1\nsentences,2,1\nsentences,3,1\n"
    )
    assert "words,0.5,3\n" in (prepared.directory / "quantiles.csv").read_text()


def test_the_test_split_changes_neither_vocabulary_nor_lengths(place):
    write_corpus(HAND_MADE)
    before = prepare("corpus", WHOLE)
    write_corpus([row if row[0] == "train" else (*row[:2], "Quite other words stand here. " * 9) for row in HAND_MADE])
    after = prepare("corpus", WHOLE)
    assert before != after
    for name in ("vocabulary.json", "quantiles.csv", "lengths.csv", "lengths.png"):
        assert (before / name).read_bytes() == (after / name).read_bytes()


def test_two_preparations_are_equal_byte_for_byte(place):
    write_corpus(random_corpus())
    folders = [prepare("corpus", {}, prepared_root=Path(root)) for root in ("one", "two")]
    assert folders[0].name == folders[1].name
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == [
            "digests.json", "example_documents.json", "labels.npy", "lengths.csv", "lengths.png", "prepared.json",
            "quantiles.csv", "raw_indices.npy", "sentence_counts.npy", "tokens.npy", "vocabulary.json",
            "word_counts.npy",
        ]  # fmt: skip
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    assert summary(folders[0]) == summary(folders[1])


def test_a_served_model_reads_raw_text_as_it_was_prepared(place):
    corpus = random_corpus()
    write_corpus(corpus)
    prepared = open_prepared(prepare("corpus", {}))
    index = word_index(read_json(prepared.directory / "vocabulary.json"))
    kept = prepared.description["lengths"]
    in_split_order = [text for split in SPLITS for part, _, text in corpus if part == split]
    for row, text in enumerate(in_split_order):
        kept_lengths = kept["sentences"]["kept"], kept["words"]["kept"]
        tokens, word_counts = words_as_numbers(segment(text), index, *kept_lengths)
        np.testing.assert_array_equal(tokens, prepared.arrays["tokens"][slice(*prepared.first_words[row : row + 2])])
        np.testing.assert_array_equal(word_counts, prepared.arrays["word_counts"][row])
        assert np.count_nonzero(word_counts) == prepared.arrays["sentence_counts"][row]
    assert (
        sum(len(segment(text)) for text in in_split_order[:120])
        == summary(prepared.directory)["cut"]["train"]["sentences"]
    )


def test_several_labels_a_row(place):
    rows = [("train", [0, 2], "a b"), ("train", [], "c d"), ("validation", [1], "e"), ("test", [0, 1, 2], "f")]
    write_corpus(rows, task="multi-label")
    prepared = open_prepared(prepare("corpus", WHOLE))
    assert prepared.task == "multi-label"
    assert prepared.labels.dtype == np.uint8
    assert prepared.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_rows_per_class_keeps_few_of_each_class_in_each_split(place, task):
    write_corpus(random_corpus(), task=task)
    whole = open_prepared(prepare("corpus", {}))
    few = open_prepared(prepare("corpus", {"rows_per_class": 4}))
    assert few.directory != whole.directory
    for split in SPLITS:
        labels = few.labels[few.rows(split)]
        counts = np.bincount(labels) if task == "single-label" else labels.sum(axis=0)
        assert counts.tolist() == [4, 4, 4]
    # Those who are kept among five of a class are kept among four, or are one too many.
    five = open_prepared(prepare("corpus", {"rows_per_class": 5}))
    ids = [
        {document["id"] for document in read_json(some.directory / "example_documents.json")} for some in (few, five)
    ]
    assert ids[0] < ids[1]


def test_images(place):
    generator = np.random.default_rng(6)
    folder = Path("data/pictures")
    folder.mkdir(parents=True)
    images = generator.integers(0, 256, size=(60, 4, 3, 2), dtype=np.uint8)
    split = np.tile(np.array([2, 0, 1], np.uint8), 20)
    labels = (generator.random((60, 3)) < 0.5).astype(np.uint8)
    for name, array in (("images", images), ("split", split), ("labels", labels)):
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    record_files("pictures", "image", "multi-label", CLASSES, dict.fromkeys(SPLITS, 20))
    prepared = open_prepared(prepare("pictures", None))
    assert prepared.description["splits"] == {"train": [0, 20], "validation": [20, 40], "test": [40, 60]}
    for number, part in enumerate(SPLITS):
        np.testing.assert_array_equal(prepared.arrays["images"][prepared.rows(part)], images[split == number])
        np.testing.assert_array_equal(prepared.labels[prepared.rows(part)], labels[split == number])
    train = images[split == 0] / 255
    np.testing.assert_allclose(prepared.description["mean"], train.mean(axis=(0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(prepared.description["deviation"], train.std(axis=(0, 1, 2)), rtol=1e-13)
    few = open_prepared(prepare("pictures", {"rows_per_class": 2}))
    for part in SPLITS:
        assert few.labels[few.rows(part)].sum(axis=0).max() <= 2
    np.save(folder / "images.npy", np.zeros_like(images))
    record_files("pictures", "image", "multi-label", CLASSES, dict.fromkeys(SPLITS, 20))
    with pytest.raises(InputError, match="'pictures': channel 0 has one value"):
        prepare("pictures", None)


def test_what_is_there_is_not_made_again_and_fresh_makes_it_again(place):
    write_corpus(HAND_MADE)
    directory = prepare("corpus", WHOLE)
    (directory / "mark").touch()
    Path("data/corpus/documents.jsonl").rename("elsewhere")  # not even read
    assert prepare("corpus", WHOLE) == directory
    assert (directory / "mark").exists()
    Path("elsewhere").rename("data/corpus/documents.jsonl")
    assert prepare("corpus", WHOLE, fresh=True) == directory
    assert not (directory / "mark").exists()


def test_two_processes_at_once_make_one_folder(place):
    write_corpus(random_corpus())
    code = "from reread.preprocessing.prepare import prepare; print(prepare('corpus', {}))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert printed[0] == printed[1]
    assert [path.name for path in Path("prepared").iterdir() if path.name != ".locks"] == [
        Path(printed[0].strip()).name
    ]
    open_prepared(Path(printed[0].strip()))


def test_what_a_killed_process_left_goes(place):
    write_corpus(HAND_MADE)
    left = Path("prepared") / f".{prepared_key('corpus', WHOLE)}.abandoned"
    left.mkdir(parents=True)
    (left / "tokens.npy").touch()
    prepare("corpus", WHOLE)
    assert not left.exists()


def test_a_prepared_array_that_was_altered_is_found(place):
    write_corpus(HAND_MADE)
    directory = prepare("corpus", WHOLE)
    path = directory / "tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="tokens.npy does not match its sha256"):
        open_prepared(directory)


@pytest.mark.parametrize("change", [lambda tokens: tokens[:-1], lambda tokens: tokens.reshape(31, 1)])
def test_an_array_of_another_shape_than_was_written_is_found(place, change):
    write_corpus(HAND_MADE)
    directory = prepare("corpus", WHOLE)
    tokens = np.load(directory / "tokens.npy")
    np.save(directory / "tokens.npy", change(tokens))
    with pytest.raises(InputError, match=r"tokens.npy is int32 \[3.*\], .* says int32 \[31\]: remove") as caught:
        open_prepared(directory, verify=False)
    assert "\n" not in str(caught.value)


def test_the_key_follows_settings_data_and_source(place):
    write_corpus(HAND_MADE)
    key = prepared_key("corpus", {})
    assert prepared_key("corpus", None) == prepared_key("corpus", {"min_count": 5}) == key
    assert prepared_key("corpus", {"length_quantile": {"words": 0.95}}) == key
    assert prepared_key("corpus", {"min_count": 4}) != key
    assert prepared_key("corpus", {"length_quantile": {"words": 0.9}}) != key
    write_corpus(HAND_MADE, name="other")
    assert prepared_key("corpus", {}) == key  # a data set beside it changes nothing
    write_corpus(HAND_MADE[:-1] + [("test", [2], "Another text.")])
    assert prepared_key("corpus", {}) != key


def test_word_vectors_are_of_the_training_split_alone(place):
    settings = WHOLE | {"word_vectors": {"size": 4, "epochs": 1}}
    write_corpus(HAND_MADE)
    without, prepared = open_prepared(prepare("corpus", WHOLE)), open_prepared(prepare("corpus", settings))
    assert prepared.directory != without.directory and "word_vectors" not in without.arrays
    vectors = prepared.arrays["word_vectors"]
    assert vectors.dtype == np.float32 and vectors.shape == (prepared.description["vocabulary_size"], 4)
    in_training = np.unique(prepared.arrays["tokens"][: prepared.first_words[prepared.rows("train")[-1] + 1]])
    assert set(np.flatnonzero(vectors.any(axis=1))) == set(in_training)

    write_corpus([row if row[0] == "train" else (*row[:2], "Quite other words stand here. " * 9) for row in HAND_MADE])
    assert open_prepared(prepare("corpus", settings)).arrays["word_vectors"].tobytes() == vectors.tobytes()


@pytest.fixture
def copied_source(tmp_path, monkeypatch):
    """A copy of the source that keys are made of; a function that edits one of its files."""
    root = copy_rooms(tmp_path / "source", "reread/preprocessing", "reread/goals", "reread/kinds", "reread/storage")
    monkeypatch.setattr(prepare_module, "numeric_digest", functools.partial(numeric_digest, root=root))

    def edit(name, old, new):
        path = root / name
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        # Truncation, text as numbers, labels, the reading of a line, the choice of rows, the order of words.
        ("reread/preprocessing/blocks.py", "(lengths, kept_words), 0)", "(lengths, kept_words), 1)"),
        ("reread/preprocessing/text.py", "LONGEST_PIECE = 1_000_000", "LONGEST_PIECE = 1_000_001"),
        ("reread/preprocessing/manifest.py", "encoded[number, list(row)] = 1", "encoded[number, list(row)] = 2"),
        ("reread/preprocessing/raw_text.py", 'tuple(row["labels"])', 'tuple(reversed(row["labels"]))'),
        ("reread/preprocessing/rows.py", "return sorted(kept)", "return kept"),
        ("reread/preprocessing/vocabulary.py", "(-counts[word], word)", "(counts[word], word)"),
        ("reread/preprocessing/word_vectors.py", "SEED = 0", "SEED = 1"),
        ("reread/preprocessing/prepare.py", "groups[rows]", "groups[rows] + 1"),
    ],
)  # fmt: skip
def test_the_key_changes_with_what_makes_the_arrays(place, copied_source, name, old, new):
    write_corpus(HAND_MADE)
    key = prepared_key("corpus", {})
    copied_source(name, old, new)
    assert prepared_key("corpus", {}) != key


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("reread/preprocessing/blocks.py", "Not by a memory map", "Never by a memory map"),
        ("reread/preprocessing/text.py", "# The longest piece, in", "# The longest part, in"),
        ("reread/preprocessing/manifest.py", "restore it from git", "restore that from git"),
        ("reread/preprocessing/workers.py", "SECONDS_TO_CONNECT = 10", "SECONDS_TO_CONNECT = 20"),
        ("reread/preprocessing/sources/imdb.py", "REVIEWS = 50_000", "REVIEWS = 50_001"),
    ],
)
def test_the_key_does_not_change_with_words_and_places(place, copied_source, name, old, new):
    write_corpus(HAND_MADE)
    key = prepared_key("corpus", {})
    copied_source(name, old, new)
    assert prepared_key("corpus", {}) == key


def test_the_key_names_the_versions_of_the_libraries_that_make_arrays(place, monkeypatch):
    write_corpus(HAND_MADE)
    version = importlib.metadata.version
    keys = set()
    for library in ("none", "numpy", "blingfire", "pyarrow", "gensim"):

        def changed(name, library=library):
            return "0" if name == library else version(name)

        monkeypatch.setattr(prepare_module.importlib.metadata, "version", changed)
        keys.add(prepared_key("corpus", {}))
        if library == "gensim":
            assert prepared_key("corpus", {"word_vectors": {}}) not in keys
    assert len(keys) == 4, "gensim finds no word vectors where there are none"


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"length_quantile": {"words": 1.2}}, "length_quantile.words"),
        ({"length_quantile": {"sentences": 0}}, "length_quantile.sentences"),
        ({"length_quantile": {"word": 0.9}}, "'words'"),
        ({"length_quantile": 0.9}, "length_quantile"),
        ({"min_cuont": 5}, "'min_count'"),
        ({"min_count": 0}, "min_count"),
        ({"min_count": None}, "min_count"),
        ({"rows_per_class": 2.5}, "rows_per_class"),
        ({"word_vectors": {"size": 0}}, "word_vectors.size"),
        ({"word_vectors": 200}, "word_vectors"),
        (["rows_per_class"], "corpus"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, place):
    with pytest.raises(InputError, match=place) as caught:
        read(kinds.kind("text").settings, settings, "preprocessing.corpus")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        ([*HAND_MADE, ("validation", [0], "\u200b")], "document 'document 6' has no word: remove it"),
        ([*HAND_MADE, ("train", [0], "")], "document 'document 6' is empty"),
        ([row for row in HAND_MADE if row[0] != "validation"], "no rows in split 'validation'"),
        ([(split, [0], text) for split, _, text in HAND_MADE], "only one class"),
        ([(split, [int(split == "test")], text) for split, _, text in HAND_MADE], "'corpus': its training split"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_and_leaves_nothing(place, rows, message):
    write_corpus(rows)
    with pytest.raises(InputError, match=message) as caught:
        prepare("corpus", WHOLE)
    assert "\n" not in str(caught.value)
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


def test_data_that_was_edited_is_refused(place):
    write_corpus(HAND_MADE)
    path = Path("data/corpus/documents.jsonl")
    path.write_text(path.read_text().replace("Cats", "Rats"))
    with pytest.raises(InputError, match="documents.jsonl is not the file that the manifest names"):
        prepare("corpus", WHOLE)


def test_an_unknown_data_set_is_refused_with_the_nearest(place):
    write_corpus(HAND_MADE)
    with pytest.raises(InputError, match="no data set 'corpse' .* did you mean 'corpus'"):
        prepare("corpse", {})


def test_a_document_of_a_million_words_is_cut(place):
    long = ("train", [0], "a word " * 500_000)
    write_corpus([long, *HAND_MADE * 20])
    prepared = open_prepared(prepare("corpus", {"min_count": 1}))
    assert prepared.description["lengths"]["words"]["longest"] > 100_000
    assert prepared.arrays["word_counts"].shape == (121, 3) and prepared.arrays["word_counts"].max() == 4
    cut = prepared.description["cut"]["train"]
    assert cut["words"] - cut["words_dropped"] == prepared.arrays["word_counts"][: cut["documents"]].sum()


def test_one_enormous_sentence_among_short_ones_makes_no_other_longer(place):
    endless = ("train", [0], "a word " * 500_000)
    write_corpus([endless, *HAND_MADE * 20])
    folder = prepare("corpus", WHOLE)
    prepared = open_prepared(folder)
    # The tokeniser makes sentences of its million words, and the six short texts have 37.
    longest = prepared.description["lengths"]["words"]["kept"]
    assert longest > 100_000
    assert len(prepared.arrays["tokens"]) == 1_000_000 + 20 * 37
    assert (folder / "tokens.npy").stat().st_size < 4 * len(prepared.arrays["tokens"]) + 200
    assert prepared.arrays["word_counts"].max() == longest


def test_arrays_larger_than_the_disk_are_refused(place, monkeypatch):
    write_corpus(HAND_MADE)
    free = type("Usage", (), {"free": 190})()
    monkeypatch.setattr(documents.shutil, "disk_usage", lambda path: free)
    message = "preprocessing.corpus.length_quantile: 31 words, and counts of 6 documents x 3 sentences, take"
    with pytest.raises(InputError, match=message):
        prepare("corpus", WHOLE)
