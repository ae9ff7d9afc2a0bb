"""Movie review polarity: 2,000 film reviews, half of them positive.

Source: B. Pang, L. Lee, "A Sentimental Education: Sentiment Analysis Using Subjectivity Summarization Based on Minimum
Cuts", ACL 2004; version 2.0, review_polarity.tar.gz. The authors' text is in lower case, its words are apart and a
line is a sentence: each becomes a paragraph here, so that no sentence reaches over the end of a line.

The authors publish no test split but the ten folds of their cross-validation, 100 reviews of each class by the number
in the name (cv000 to cv099, and so on). The first eight are train, the ninth is validation and the tenth test.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from preprocessing.archives import ANEW, check_count, read_members
from preprocessing.download import Archive
from preprocessing.raw import About
from preprocessing.raw_text import Document, TextRows
from storage.errors import InputError

ARCHIVES = (
    Archive(
        "review_polarity.tar.gz",
        "https://www.cs.cornell.edu/people/pabo/movie-review-data/review_polarity.tar.gz",
        # As scikit-learn's text tutorial has it; the authors publish none.
        "sha256",
        "fc0dccc2671af5db3c5d8f81f77a1ebfec953ecdd422334062df61ede36b2179",
    ),
)
REVIEWS = 2_000
SPLIT_OF_FOLD = {8: "validation", 9: "test"}
# The digest of the published content: a mirror that is packed anew has the same.
VERSION = "f3adb4cf76de66b486594455607702aecd73e6cf057d8956eaa0351db6d9f234"
ABOUT = About(
    classes=("neg", "pos"),
    source="Movie Review polarity dataset v2.0 (Pang, Lee, 2004), "
    "https://www.cs.cornell.edu/people/pabo/movie-review-data/",
    licence="CC BY 4.0 as NLTK's copy states; the authors ask to cite their paper",
)
REVIEW = re.compile(r"txt_sentoken/((neg|pos)/cv(\d)\d\d_\d+\.txt)")


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """The reviews; their id is the name in the archive (pos/cv000_29590.txt). InputError as archives.read_members."""
    (path,) = archives
    progress(f"reading {path}")
    documents = []
    for name, content in read_members(path, lambda name: REVIEW.fullmatch(name) is not None):
        key, label, fold = REVIEW.fullmatch(name).groups()
        try:
            sentences = content.decode("ascii").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: '{name}' is not ASCII at byte {error.start}: {ANEW}") from None
        text = "\n\n".join(sentence.strip() for sentence in sentences if sentence.strip())
        split = SPLIT_OF_FOLD.get(int(fold), "train")
        documents.append(Document(key, (ABOUT.classes.index(label),), split, text))
    check_count(path, "reviews", len(documents), REVIEWS)
    return TextRows(ABOUT, documents)
