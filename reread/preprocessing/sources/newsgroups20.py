"""20 Newsgroups, split by date: 18,846 messages to 20 groups.

Source: collected by K. Lang, "NewsWeeder: Learning to Filter Netnews", ICML 1995; the "bydate" version by J. Rennie,
20news-bydate.tar.gz. Headers, signatures and quoted replies reveal the group and are removed as scikit-learn does
(fetch_20newsgroups with remove=("headers", "footers", "quotes")). Messages without a letter or digit left are dropped.
The test split is the published one; validation is a tenth of the published training split, chosen by the text.

Rows have no groups: threads and authors continue from the published training split into the test split, which is cut by
date, so no grouping by them keeps the published splits.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from reread.preprocessing.archives import check_count, read_matching
from reread.preprocessing.download import Archive
from reread.preprocessing.raw import About, held_out
from reread.preprocessing.raw_text import Document, TextRows

ARCHIVES = (
    Archive(
        "20news-bydate.tar.gz",
        "https://ndownloader.figshare.com/files/5975967",
        "sha256",
        "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    ),
)
MESSAGES = 18_846
# The digest of the published content, however its archive is packed.
VERSION = "97916476d063f8caa13898fb32e52932dbad75ca9a5569bc313aee8cdaa5151a"
ABOUT = About(
    classes=(
        "alt.atheism",
        "comp.graphics",
        "comp.os.ms-windows.misc",
        "comp.sys.ibm.pc.hardware",
        "comp.sys.mac.hardware",
        "comp.windows.x",
        "misc.forsale",
        "rec.autos",
        "rec.motorcycles",
        "rec.sport.baseball",
        "rec.sport.hockey",
        "sci.crypt",
        "sci.electronics",
        "sci.med",
        "sci.space",
        "soc.religion.christian",
        "talk.politics.guns",
        "talk.politics.mideast",
        "talk.politics.misc",
        "talk.religion.misc",
    ),
    source="20 Newsgroups, bydate version (Lang, 1995; Rennie), http://qwone.com/~jason/20Newsgroups/",
    licence="none stated by its home page; CC BY 4.0 in the UCI Machine Learning Repository",
)
MESSAGE = re.compile(rf"20news-bydate-(train|test)/({'|'.join(map(re.escape, ABOUT.classes))})/(\d+)")
QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """Return the messages; ids are split/group/number. InputError as archives.read_members."""
    (path,) = archives
    progress(f"reading {path}")
    documents, empty = [], 0
    for match, content in read_matching(path, MESSAGE):
        split, group, number = match.groups()
        text = strip_message(content.decode("latin-1").replace("\r\n", "\n"))
        if not any(map(str.isalnum, text)):
            empty += 1
            continue
        key = f"{split}/{group}/{number}"
        if split == "train" and held_out(text.encode()):
            split = "validation"
        documents.append(Document(key, (ABOUT.classes.index(group),), split, text))
    check_count(path, "messages", len(documents) + empty, MESSAGES)
    return TextRows(replace(ABOUT, dropped={"no word but in headers, signature and quotes": empty}), documents)


def strip_message(text: str) -> str:
    """Remove the header (to the first empty line), the signature and the quoted lines.

    The signature follows the last line that is empty or consists of hyphens.
    """
    body = text.partition("\n\n")[2]
    lines = body.strip().split("\n")
    last = next((number for number in reversed(range(len(lines))) if not lines[number].strip().strip("-")), 0)
    kept = lines[:last] if last > 0 else body.split("\n")
    return "\n".join(line for line in kept if not QUOTE.search(line))
