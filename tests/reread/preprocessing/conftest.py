"""The parts that tests of preparing share: corpora made by hand."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reread.preprocessing.manifest import DataSetEntry, FileEntry, record
from reread.storage.prepared import SPLITS
from tests.reads import rows_of_test

__all__ = ["rows_of_test"]


@pytest.fixture
def corpus_of(tmp_path, monkeypatch) -> Callable[..., None]:
    """A function that makes documents the data set 'corpus' of an empty project root, the current folder."""
    monkeypatch.chdir(tmp_path)

    def make(documents: list[dict], several: bool = False) -> None:
        path = Path("data/corpus/documents.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(json.dumps(document) + "\n" for document in documents).encode()
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        task = "multi-label" if several else "single-label"
        splits = {split: sum(document["split"] == split for document in documents) for split in SPLITS}
        files = {path.name: FileEntry(digest, len(content), len(documents))}
        record("corpus", DataSetEntry("text", task, ("a", "b", "c"), "a test", "none", digest, files, splits))

    return make
