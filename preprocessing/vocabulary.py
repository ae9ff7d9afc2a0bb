"""The vocabulary: the words of the training split that are frequent enough, and the number of each.

Words seen fewer than ``minimum_count`` times become <unk>, after Yang et al. 2016, section 3.3, who keep words that
appear more than five times. The tokeniser takes "<unk>" apart, so that no word of a text
can be mistaken for one of the two special entries.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

PADDING, UNKNOWN = "<pad>", "<unk>"
PADDING_INDEX, UNKNOWN_INDEX = 0, 1


def count_words(sentences: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the words of sentences. Counts of parts add up exactly, by ``+`` or ``update``, to those of the whole."""
    return Counter(chain.from_iterable(sentences))


def build_vocabulary(counts: Counter[str], minimum_count: int) -> list[str]:
    """Return <pad>, <unk>, and the words seen at least ``minimum_count`` times, most frequent first, ties by the word.

    The order depends on the counts alone, never on the order in which they were counted.
    """
    frequent = [word for word, count in counts.items() if count >= minimum_count]
    return [PADDING, UNKNOWN, *sorted(frequent, key=lambda word: (-counts[word], word))]


def word_index(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return the number of each word, its position in the vocabulary."""
    return {word: number for number, word in enumerate(vocabulary)}
