"""Blocks of a corpus: any division of the file gives the same arrays, and memory does not grow with its length."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing import blocks, rows, vocabulary
from reread.preprocessing.blocks import number_words, split_into_blocks, truncate
from reread.preprocessing.prepare import prepare
from reread.preprocessing.text import mark_sentences, number, segment
from reread.preprocessing.vocabulary import WordCounts
from reread.storage.errors import InputError
from tests.conftest import run_python

TEXTS = [
    "One sentence. Another one, e.g. this!",
    'It ends in the U.S.\n\nIn the "U.K." too',
    "今天天气很好。明天呢?",
    "a\x03b \x00 c\u241ed \u2028 e\u00a0f \x1c g",
    "...",
    "Before.\n\n\u200b\n\nA sentence without a word stands between. After.",
    "word " * 400,
    "And the last chunk that is new isn't",
]


def test_numbered_words_are_those_of_the_segmented_texts():
    words, numbers, lengths, counts = number_words(list(map(mark_sentences, TEXTS)))
    sentences = [sentence for text in TEXTS for sentence in segment(text)]
    assert [words[place] for place in numbers] == [word for sentence in sentences for word in sentence]
    assert lengths.tolist() == list(map(len, sentences))
    assert counts.tolist() == [len(segment(text)) for text in TEXTS]


def test_a_block_without_words_or_without_documents():
    _words, numbers, lengths, counts = number_words(list(map(mark_sentences, ["\u200b", "a b", ""])))
    assert (len(numbers), lengths.tolist(), counts.tolist()) == (2, [2], [0, 1, 0])
    assert [array.tolist() for array in number_words([])[1:]] == [[], [], []]


@pytest.mark.parametrize(("kept_sentences", "kept_words"), [(1, 1), (2, 3), (3, 500), (50, 2)])
def test_cut_documents_are_those_of_a_served_model(kept_sentences, kept_words):
    words, numbers, lengths, counts = number_words(list(map(mark_sentences, TEXTS)))
    index = {word: place + 2 for place, word in enumerate(words)}
    tokens, word_counts = truncate((numbers + 2).astype(np.int32), lengths, counts, kept_sentences, kept_words)
    expected = [number(segment(text), index, kept_sentences, kept_words) for text in TEXTS]
    assert tokens.dtype == word_counts.dtype == np.int32
    np.testing.assert_array_equal(tokens, np.concatenate([cut for cut, _ in expected]))
    np.testing.assert_array_equal(word_counts, np.stack([counts for _, counts in expected]))


def test_blocks_are_whole_lines_and_cover_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 10)
    path = tmp_path / "lines"
    content = b"".join(b"x" * length + b"\n" for length in (3, 30, 0, 9, 10, 1)) + b"no end"
    path.write_bytes(content)
    divided = split_into_blocks(path)
    parts = [content[block["start"] : block["stop"]] for block in divided]
    assert b"".join(parts) == content and all(part.endswith(b"\n") for part in parts[:-1])
    assert [block["first_line"] for block in divided] == [
        content[: block["start"]].count(b"\n") + 1 for block in divided
    ]
    path.write_bytes(b"")
    assert split_into_blocks(path) == []


def test_words_are_counted_exactly_also_beyond_what_memory_holds(tmp_path, monkeypatch):
    generator = random.Random(3)
    parts = [Counter(generator.choices(["é", *map(str, range(300))], k=400)) for _ in range(20)]
    counted = []
    for limit in (10**6, 50):
        monkeypatch.setattr(vocabulary, "MOST_IN_MEMORY", limit)
        counts = WordCounts(tmp_path)
        for part in parts:
            counts.add([*part, "never"], [*part.values(), 0])
        counted.append(counts.at_least(20))
        assert (tmp_path / "words.sqlite").exists() == (limit == 50)
    whole = sum(parts, Counter())
    assert counted[0] == counted[1] == {word: count for word, count in whole.items() if count >= 20}


def random_rows(count: int, several: bool = False) -> list[dict]:
    """Documents of a corpus whose splits are mixed, and not in the order of the file."""
    generator = random.Random(4)
    words = [f"w{number}" for number in range(400)]
    documents = []
    for number_ in range(count):
        text = " ".join(" ".join(generator.choices(words, k=generator.randint(1, 9))) + "." for _ in range(5))
        labels = [label for label in range(3) if generator.random() < 0.5] if several else [generator.randrange(3)]
        split = generator.choice(["train", "train", "train", "validation", "test"])
        documents.append({"id": f"d{number_}", "labels": labels, "split": split, "text": text})
    return documents


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("settings", [{}, {"rows_per_class": 3, "length_quantile": {"sentences": 1}}])
def test_any_division_gives_the_same_bytes(corpus_of, monkeypatch, several, settings):
    corpus_of(random_rows(120, several), several)
    folders = []
    for name, block, window in (("whole", 1 << 20, 1 << 20), ("small", 3000, 1), ("tiny", 1, 500)):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
        monkeypatch.setattr(blocks, "WRITTEN_AT_A_TIME", window)
        folders.append(prepare("corpus", settings, prepared_root=Path(name)))
    for path in folders[0].iterdir():
        for other in folders[1:]:
            assert path.read_bytes() == (other / path.name).read_bytes(), path.name
    assert len({len(list(folder.iterdir())) for folder in folders}) == 1


@pytest.mark.parametrize("several", [False, True])
def test_rows_are_chosen_as_from_a_list_in_memory(corpus_of, several):
    from reread.preprocessing.manifest import open_data_set

    documents = random_rows(300, several)
    corpus_of(documents, several)
    split = np.array([["train", "validation", "test"].index(document["split"]) for document in documents], np.uint8)
    labels, ids = [document["labels"] for document in documents], [document["id"] for document in documents]
    expected, _ = rows.choose_rows("corpus", split, labels, ids, 7)
    chosen = rows.choose_documents(open_data_set("corpus"), 7, Path())
    np.testing.assert_array_equal(chosen, expected)


def test_the_first_wrong_line_of_the_file_is_named(corpus_of, monkeypatch):
    documents = random_rows(60)
    for number_ in (41, 50):
        documents[number_]["split"] = "trian"
    corpus_of(documents)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 500)
    with pytest.raises(InputError, match=r"data/corpus/documents.jsonl, line 42: split 'trian' of document 'd41'"):
        prepare("corpus", {})
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


# Of what Python and numpy allocate: a process's resident memory also has the pages of libraries that the system kept.
PEAK = """
import tracemalloc
from reread.preprocessing import blocks
from reread.preprocessing.prepare import prepare
from reread.preprocessing.workers import Workers, use_workers
blocks.BLOCK_BYTES = blocks.WRITTEN_AT_A_TIME = 1 << 19
tracemalloc.start()
with use_workers(Workers(1)):
    prepare("corpus", {})
print(tracemalloc.get_traced_memory()[1])
"""


def test_memory_does_not_grow_with_the_corpus(corpus_of):
    documents = random_rows(2000)
    peaks, sizes = [], []
    for times in (10, 50):
        corpus_of([{**document, "id": f"{document['id']}-{time}"} for time in range(times) for document in documents])
        done = run_python("-c", PEAK, folder=Path.cwd())
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
        sizes.append(Path("data/corpus/documents.jsonl").stat().st_size)
    assert peaks[1] - peaks[0] < 0.25 * (sizes[1] - sizes[0]), (peaks, sizes)
