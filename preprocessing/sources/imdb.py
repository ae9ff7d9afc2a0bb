"""IMDB: 50,000 film reviews, half of them positive.

Source: A. Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011; aclImdb_v1.tar.gz. The unlabelled
reviews (unsup) and the .feat files may be there or not. The marks "<br />" become line breaks. The test split is the
published one; validation is a tenth of the published training split, chosen by the text.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from preprocessing.archives import ANEW, check_count, read_members
from preprocessing.download import Archive
from preprocessing.manifest import Document
from preprocessing.raw import About, TextRows, held_out
from storage.errors import InputError

ARCHIVES = (
    Archive(
        "aclImdb_v1.tar.gz",
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "md5",
        "7c2ac02c03563afcf9b574c7e56c153a",
    ),
)
REVIEWS = 50_000
# The digest of the published content: a mirror that is packed anew has the same.
VERSION = "496c721d778810ad57164dc0e57c384471a470cd5333d2290ac087c4e7b9733f"
ABOUT = About(
    classes=("neg", "pos"),
    source="Large Movie Review Dataset v1.0 (Maas et al., 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
    licence="none stated; the authors ask to cite their paper",
)
REVIEW = re.compile(r"aclImdb/((train|test)/(neg|pos)/\d+_\d+\.txt)")
LINE_BREAK = re.compile(r"(?:\s*<br\s*/?>\s*)+")


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """The reviews; their id is the name in the archive (train/pos/0_9.txt). InputError as archives.read_members."""
    (path,) = archives
    progress(f"reading {path}")
    documents = []
    for name, content in read_members(path, lambda name: REVIEW.fullmatch(name) is not None):
        key, split, label = REVIEW.fullmatch(name).groups()
        try:
            text = LINE_BREAK.sub("\n", content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: '{name}' has invalid UTF-8 at byte {error.start}: {ANEW}") from None
        if split == "train" and held_out(text.encode()):
            split = "validation"
        documents.append(Document(key, (ABOUT.classes.index(label),), split, text))
    check_count(path, "labelled reviews", len(documents), REVIEWS)
    return TextRows(ABOUT, documents)
