"""Whether a baseline on texts knows any feature of a text: where it knows none, its answer is that to an empty text."""

from collections.abc import Callable

from sklearn.feature_extraction.text import CountVectorizer

from reread.evaluation.char_svm import character_vectoriser
from reread.evaluation.linear_models import State, word_vectoriser, words_of
from reread.evaluation.nb_svm import bigram_vectoriser

Knows = Callable[[str], bool]


def of_words(state: State) -> Knows:
    return _of(word_vectoriser(), state)


def of_bigrams(state: State) -> Knows:
    return _of(bigram_vectoriser(), state)


def of_characters(state: State) -> Knows:
    return _of(character_vectoriser(), state)


def _of(vectoriser: CountVectorizer, state: State) -> Knows:
    known, analyse = set(words_of(state)), vectoriser.build_analyzer()
    return lambda text: not known.isdisjoint(analyse(text))
