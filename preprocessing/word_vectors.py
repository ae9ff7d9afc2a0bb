"""Word vectors of the training split: word2vec, as Yang et al. 2016 (section 3.3) begin their embedding.

Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality, 2013: skip-gram
with negative sampling, as gensim computes it. It reads the kept words of the training split and no other text, a
sentence at a time; a rare word is one of the unknown ones here too. One thread and one seed: the same arrays give the
same vectors on one kind of CPU.
"""

from collections.abc import Iterator

import numpy as np

from kinds.text import WordVectors

SEED = 0
NEGATIVE_SAMPLES = 5  # words drawn against each true neighbour: 5 to 20 for small corpora, section 2.2
DOCUMENTS_AT_A_TIME = 1024
LONGEST_SENTENCE = 10_000  # of a longer one gensim would leave out the rest; it is read in parts


def train_word_vectors(
    tokens: np.ndarray, word_counts: np.ndarray, vocabulary_size: int, settings: WordVectors
) -> np.ndarray:
    """Return a vector for each word of the vocabulary, float32 [V, D], zero for one that stands in no sentence.

    tokens: int32 [M], the words of the sentences one after the other; word_counts: int32 [N, S], how many each
    sentence of each document has.
    """
    # Here rather than above, since only this needs it and it is slow to import.
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
    """Sentences as gensim reads them, once an epoch: lists of names, here the words' numbers written out."""

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
