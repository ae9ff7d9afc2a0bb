"""Movie review polarity: 2,000 film reviews, half of them positive.

Source: B. Pang, L. Lee, "A Sentimental Education: Sentiment Analysis Using Subjectivity Summarization Based on Minimum
Cuts", ACL 2004; version 2.0, review_polarity.tar.gz. The authors' text is tokenised, in lower case and has one sentence
per line. Each line becomes a paragraph, so that no sentence spans two lines.

The authors publish the ten folds of their cross-validation and no test split: 100 reviews of each class by the number
in the name (cv000 to cv099, and so on). Folds 1 to 8 are train, the ninth is validation and the tenth test.
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
        "review_polarity.tar.gz",
        "https://www.cs.cornell.edu/people/pabo/movie-review-data/review_polarity.tar.gz",
        # From scikit-learn's text tutorial; the authors publish none.
        "sha256",
        "fc0dccc2671af5db3c5d8f81f77a1ebfec953ecdd422334062df61ede36b2179",
    ),
)
REVIEWS = 2_000
SPLIT_OF_FOLD = {8: "validation", 9: "test"}
# The digest of the published content, however its archive is packed.
VERSION = "f3adb4cf76de66b486594455607702aecd73e6cf057d8956eaa0351db6d9f234"
ABOUT = About(
    classes=("neg", "pos"),
    source="Movie Review polarity dataset v2.0 (Pang, Lee, 2004), "
    "https://www.cs.cornell.edu/people/pabo/movie-review-data/",
    licence="CC BY 4.0 as NLTK's copy states; the authors ask to cite their paper",
)
REVIEW = re.compile(r"txt_sentoken/((neg|pos)/cv(\d)\d\d_\d+\.txt)")


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """Return the reviews; ids are names in the archive (pos/cv000_29590.txt). InputError as archives.read_members."""
    (path,) = archives
    progress(f"reading {path}")
    documents = []
    for match, content in read_matching(path, REVIEW):
        key, label, fold = match.groups()
        try:
            sentences = content.decode("ascii").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: '{match[0]}' is not ASCII at byte {error.start}: {DOWNLOAD_AGAIN}") from None
        text = "\n\n".join(sentence.strip() for sentence in sentences if sentence.strip())
        split = SPLIT_OF_FOLD.get(int(fold), "train")
        documents.append(Document(key, (ABOUT.classes.index(label),), split, text))
    check_count(path, "reviews", len(documents), REVIEWS)
    return TextRows(ABOUT, documents)
