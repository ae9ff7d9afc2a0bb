"""Word vectors of the training split: word2vec, with which Yang et al. 2016 (section 3.3) initialise their embedding.

Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality, 2013: skip-gram
with negative sampling, computed by gensim. It reads only the kept words of the training split, sentence by sentence;
rare words are <unk>. One thread and one seed: equal arrays give equal vectors on one kind of CPU.
"""

from collections.abc import Iterator

import numpy as np

from reread.kinds.text import WordVectors

SEED = 0
NEGATIVE_SAMPLES = 5  # words drawn against each true neighbour: 5 to 20 for small corpora, section 2.2
DOCUMENTS_AT_A_TIME = 1024
LONGEST_SENTENCE = 10_000  # gensim would truncate a longer one; it is read in parts


def train_word_vectors(
    tokens: np.ndarray, word_counts: np.ndarray, vocabulary_size: int, settings: WordVectors
) -> np.ndarray:
    """Return a vector for each word of the vocabulary, float32 [V, D], zero for a word that does not occur.

    tokens: int32 [M], the words of the sentences one after the other; word_counts: int32 [N, S], the number of words of
    each sentence of each document.
    """
    # Imported here: it is slow, and only this function needs it.
    from gensim.models import Word2Vec

    sentences = _Sentences(tokens, word_counts, vocabulary_size)
    counts = np.bincount(tokens, minlength=vocabulary_size)
    model = Word2Vec(
        vector_size=settings.size,
        window=settings.window,
        sg=1,
        negative=NEGATIVE_SAMPLES,
        min_count=1,
        seed=SEED,
        workers=1,
    )
    model.build_vocab_from_freq({sentences.names[word]: int(counts[word]) for word in np.flatnonzero(counts)})
    model.train(
        sentences,
        total_examples=int((-(-word_counts // LONGEST_SENTENCE)).sum()),
        total_words=len(tokens),
        epochs=settings.epochs,
    )
    vectors = np.zeros((vocabulary_size, settings.size), np.float32)
    vectors[np.array(model.wv.index_to_key, np.int64)] = model.wv.vectors
    return vectors


class _Sentences:
    """Sentences as gensim iterates over them in each epoch: lists of names, which are the words' numbers as text."""

    def __init__(self, tokens: np.ndarray, word_counts: np.ndarray, vocabulary_size: int) -> None:
        self.tokens = tokens
        self.word_counts = word_counts
        self.names = [str(word) for word in range(vocabulary_size)]

    def __iter__(self) -> Iterator[list[str]]:
        start = 0
        for row in range(0, len(self.word_counts), DOCUMENTS_AT_A_TIME):
            lengths = self.word_counts[row : row + DOCUMENTS_AT_A_TIME]
            lengths = lengths[lengths > 0]
            words = [self.names[word] for word in self.tokens[start : start + int(lengths.sum())].tolist()]
            start += len(words)
            place = 0
            for length in lengths.tolist():
                for start_of_part in range(place, place + length, LONGEST_SENTENCE):
                    yield words[start_of_part : min(start_of_part + LONGEST_SENTENCE, place + length)]
                place += length
