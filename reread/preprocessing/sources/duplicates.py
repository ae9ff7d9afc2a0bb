"""Near duplicates: texts that share most of their runs of five words.

Exact Jaccard similarity of shingle sets (A. Broder, "On the resemblance and containment of documents", 1997), by an
index of shingles instead of random sketches.
"""

import re
from collections import Counter, defaultdict

WORD = re.compile(r"\w+")


class NearDuplicates:
    """An index of texts that detects whether a new one resembles one of them."""

    def __init__(self, threshold: float = 0.5, shingle_words: int = 5) -> None:
        self.threshold = threshold
        self.shingle_words = shingle_words
        self.sizes: list[int] = []
        self.texts_with: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def shingles(self, text: str) -> set[tuple[str, ...]]:
        words = WORD.findall(text.lower())
        last = max(len(words) - self.shingle_words, 0)
        return {tuple(words[start : start + self.shingle_words]) for start in range(last + 1)}

    def add(self, text: str) -> bool:
        """Add ``text`` and return True, or return False where its Jaccard similarity to an indexed text is too high."""
        shingles = self.shingles(text)
        shared = Counter(number for shingle in shingles for number in self.texts_with.get(shingle, ()))
        if any(
            count >= self.threshold * (len(shingles) + self.sizes[number] - count) for number, count in shared.items()
        ):
            return False
        for shingle in shingles:
            self.texts_with[shingle].append(len(self.sizes))
        self.sizes.append(len(shingles))
        return True
