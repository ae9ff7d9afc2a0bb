"""IMDB: 50,000 film reviews, half of them positive.

Source: A. Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011; aclImdb_v1.tar.gz. The unlabelled
reviews (unsup) and the .feat files are optional. "<br />" becomes a line break. The test split is the published one and
shares no film with the training split. Validation is a tenth of the published training split and consists of whole
films: a per-review split would leak films into validation and reward networks that memorise their names. (Seventeen
more reviews are in validation because their texts were posted again for one of its films.)

The archive does not name the films, but numbers a film's reviews consecutively, and a film has at most 30. Shared
names (capitalised words in 2 to 40 reviews) per pair of positive reviews, by the distance of their numbers:

    1     1.04
    20    0.13
    30+   0.003

Films with reviews of both classes come first among the negative reviews, in the same order.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from reread.preprocessing.archives import DOWNLOAD_AGAIN, check_count, read_matching
from reread.preprocessing.download import Archive
from reread.preprocessing.raw import About
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.errors import InputError

ARCHIVES = (
    Archive(
        "aclImdb_v1.tar.gz",
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "md5",
        "7c2ac02c03563afcf9b574c7e56c153a",
    ),
)
REVIEWS = 50_000
# The digest of the published content, however its archive is packed.
VERSION = "b5efe364a9a0be2abc8d7af2d4566869103ac1fc61bc380f98bbb03c303de1c2"
ABOUT = About(
    classes=("neg", "pos"),
    source="Large Movie Review Dataset v1.0 (Maas et al., 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
    licence="none stated; the authors ask to cite their paper",
    groups="imdb",
)
REVIEW = re.compile(r"aclImdb/((train|test)/(neg|pos)/(\d+)_\d+\.txt)")
# Whole films: the first ones, and among those without a positive review as many as balance the classes.
VALIDATION = {"pos": (range(1250),), "neg": (range(347), range(11_602, 12_500))}
MOST_REVIEWS_OF_A_FILM = 30
LINE_BREAK = re.compile(r"(?:\s*<br\s*/?>\s*)+")


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """Return the reviews; ids are names in the archive (train/pos/0_9.txt). InputError as archives.read_members."""
    (path,) = archives
    progress(f"reading {path}")
    documents, held_out = [], set()
    for match, content in read_matching(path, REVIEW):
        key, split, label, number = match.groups()
        try:
            text = LINE_BREAK.sub("\n", content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: '{match[0]}' has invalid UTF-8 at byte {error.start}: {DOWNLOAD_AGAIN}"
            ) from None
        if split == "train" and any(int(number) in numbers for numbers in VALIDATION[label]):
            held_out.add(text)
        documents.append(Document(key, (ABOUT.classes.index(label),), split, text))
    check_count(path, "labelled reviews", len(documents), REVIEWS)
    # By the text, because a few reviews were posted again for another film.
    documents = [
        document._replace(split="validation") if document.split == "train" and document.text in held_out else document
        for document in documents
    ]
    return TextRows(ABOUT, documents)


def group_of(document: Document) -> str:
    """Return the run of neighbouring reviews that a review is in, of one split and class.

    The archive names no film, but a film's reviews are neighbours. So runs as long as the longest film's are nearly
    independent of one another: the blocks of a block bootstrap (Künsch 1989) where the films are unknown.
    """
    _, label, name = document.id.split("/")
    return f"{document.split}/{label}/{int(name.partition('_')[0]) // MOST_REVIEWS_OF_A_FILM}"
