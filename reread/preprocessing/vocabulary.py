"""The vocabulary: the frequent words of the training split, each with a number.

Words seen fewer than ``min_count`` times become <unk>, after Yang et al. 2016, section 3.3, who keep words that
appear more than five times (a min_count of 6). The tokeniser splits "<unk>", so no word of a text equals one of the two
special entries.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path

PADDING, UNKNOWN = "<pad>", "<unk>"
UNKNOWN_INDEX = 1  # that of padding is 0
MOST_IN_MEMORY = 1_000_000  # distinct words


class WordCounts:
    """Exact counts of any number of distinct words: beyond MOST_IN_MEMORY they move to a database in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "words.sqlite"
        self.in_memory: Counter[str] = Counter()
        self.on_disk: sqlite3.Connection | None = None

    def add(self, words: Iterable[str], counts: Iterable[int]) -> None:
        """Add the counts of some distinct words; zeros are ignored."""
        self.in_memory.update(dict(filter(itemgetter(1), zip(words, counts, strict=True))))
        if len(self.in_memory) > MOST_IN_MEMORY:
            self._move_to_disk()

    def at_least(self, min_count: int) -> Counter[str]:
        """Return the counts of the words seen at least ``min_count`` times."""
        if self.on_disk is None:
            return Counter({word: count for word, count in self.in_memory.items() if count >= min_count})
        self._move_to_disk()
        frequent = Counter(dict(self.on_disk.execute("SELECT * FROM words WHERE count >= ?", (min_count,))))
        self.on_disk.close()
        return frequent

    def _move_to_disk(self) -> None:
        if self.on_disk is None:
            self.on_disk = sqlite3.connect(self.path, isolation_level=None)
            # The file is worthless after a crash.
            self.on_disk.execute("PRAGMA journal_mode = OFF")
            self.on_disk.execute("PRAGMA synchronous = OFF")
            self.on_disk.execute("CREATE TABLE words (word TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        self.on_disk.execute("BEGIN")
        self.on_disk.executemany(
            "INSERT INTO words VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
            sorted(self.in_memory.items()),
        )
        self.on_disk.execute("COMMIT")
        self.in_memory.clear()


def build_vocabulary(counts: Counter[str]) -> list[str]:
    """Return <pad>, <unk>, and the counted words, most frequent first, ties by the word.

    The order depends on the counts alone, never on the order in which they were counted.
    """
    return [PADDING, UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))]


def word_index(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return the number of each word, its position in the vocabulary."""
    return {word: number for number, word in enumerate(vocabulary)}
