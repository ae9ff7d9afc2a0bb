"""Turn Reuters-21578 (SGML) into JSON lines, as an example of a short adapter.

python docs/reuters.py reuters21578/*.sgm > reuters.jsonl

The split is ModApte (README of the collection, VIII.B), of articles with a topic that both of its parts have. Per line:
id, text, topics (a list) and split (train or test).
"""

import html
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SPLITS = {"TRAIN": "train", "TEST": "test"}


def articles(text: str) -> Iterator[dict[str, Any]]:
    """Yield the articles of a file that ModApte trains on or tests with."""
    for attributes, content in re.findall(r"<REUTERS\b(.*?)>(.*?)</REUTERS>", text, re.DOTALL):
        about = dict(re.findall(r'(\w+)="(.*?)"', attributes))
        if about.get("TOPICS", "YES") != "YES" or about["LEWISSPLIT"] not in SPLITS:
            continue
        topics = re.findall(r"<D>(.*?)</D>", "".join(re.findall(r"<TOPICS>(.*?)</TOPICS>", content, re.DOTALL)))
        parts = re.findall(r"<(?:TITLE|BODY)>(.*?)</(?:TITLE|BODY)>", content, re.DOTALL)
        yield {
            "id": about["NEWID"], "text": html.unescape("\n\n".join(parts)).replace("\x03", ""), "topics": topics,
            "split": SPLITS[about["LEWISSPLIT"]],
        }  # fmt: skip


def with_shared_topics(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows with the topics that both splits have; those without any are left out."""
    rows = list(rows)
    train, test = (
        {topic for row in rows if row["split"] == split for topic in row["topics"]} for split in SPLITS.values()
    )
    for row in rows:
        if topics := [topic for topic in row["topics"] if topic in train & test]:
            yield {**row, "topics": topics}


if __name__ == "__main__":
    files = (Path(name).read_text(encoding="latin-1") for name in sys.argv[1:])
    for row in with_shared_topics(row for text in files for row in articles(text)):
        print(json.dumps(row))
