"""Word vectors: words of like company are alike, the same arrays give the same bytes, and nothing else is read."""

import numpy as np
import pytest

from reread.kinds.text import WordVectors
from reread.preprocessing.word_vectors import train_word_vectors

SMALL = WordVectors(size=16, window=3, epochs=8)
PETS, METALS, WORDS, UNSEEN = [2, 3], [4, 5], 1010, 1009


@pytest.fixture(scope="module")
def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Documents of two sentences: pets stand among the words 6 to 505, metals among 506 to 1005."""
    generator = np.random.default_rng(0)
    sentences = []
    for number in range(3000):
        pets = number % 2 == 0
        company = generator.integers(6, 506, 9) if pets else generator.integers(506, 1006, 9)
        sentences.append(np.insert(company, 2, generator.choice(PETS if pets else METALS)))
    sentences = [sentence[: 6 + number % 4] for number, sentence in enumerate(sentences)]
    word_counts = np.array([len(sentence) for sentence in sentences], np.int32).reshape(-1, 2)
    # A third sentence, which no document has.
    return np.concatenate(sentences).astype(np.int32), np.pad(word_counts, ((0, 0), (0, 1)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_words_of_like_company_have_like_vectors(corpus):
    vectors = train_word_vectors(*corpus, WORDS, SMALL)
    assert vectors.shape == (WORDS, 16) and vectors.dtype == np.float32
    alike = min(cosine(*vectors[PETS]), cosine(*vectors[METALS]))
    assert alike > max(cosine(vectors[pet], vectors[metal]) for pet in PETS for metal in METALS) + 0.2
    assert not vectors[[0, UNSEEN]].any()


def test_the_same_arrays_give_the_same_bytes(corpus):
    first, second = (train_word_vectors(*corpus, WORDS, SMALL) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert train_word_vectors(*corpus, WORDS, WordVectors(size=16, window=1, epochs=8)).tobytes() != first.tobytes()


def test_no_word_is_a_neighbour_across_the_end_of_a_sentence(corpus, monkeypatch):
    """The sentences that gensim is given, whatever the number of documents read at a time."""
    from reread.preprocessing import word_vectors

    monkeypatch.setattr(word_vectors, "DOCUMENTS_AT_A_TIME", 7)
    tokens, word_counts = corpus
    sentences = list(word_vectors._Sentences(tokens, word_counts, WORDS))
    lengths = word_counts[word_counts > 0]
    assert [len(sentence) for sentence in sentences] == lengths.tolist()
    assert [int(word) for sentence in sentences for word in sentence] == tokens.tolist()


def test_a_sentence_longer_than_gensim_reads_is_read_whole():
    """The second half's order changes the vectors, and words that stand there alone have company."""
    tokens = np.random.default_rng(0).integers(2, WORDS - 1, 20_000).astype(np.int32)
    other = np.concatenate([tokens[:10_000], tokens[:9_999:-1]])
    counts = np.array([[20_000]], np.int32)
    first, second = (train_word_vectors(words, counts, WORDS, SMALL) for words in (tokens, other))
    assert first.tobytes() != second.tobytes()
