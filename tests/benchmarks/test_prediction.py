"""The benchmark of prediction: every batch and way is timed, and what cannot be is refused."""

import json

import pytest

from benchmarks import prediction
from reread.preprocessing.manifest import DataSetEntry, FileEntry, record
from reread.preprocessing.prepare import prepare
from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.prepared import SPLITS
from tests.reread.tracking.examples import prepared_images


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Twenty documents, prepared, in an empty project root that is the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data/corpus/documents.jsonl"
    path.parent.mkdir(parents=True)
    splits = [("train", "train", "validation", "test")[row % 4] for row in range(20)]
    rows = [
        {"id": str(row), "labels": [row % 2], "split": split, "text": f"Row {row} is read. It ends."}
        for row, split in enumerate(splits)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {path.name: FileEntry(sha256_file(path), path.stat().st_size, len(rows))}
    counts = {split: splits.count(split) for split in SPLITS}
    record("corpus", DataSetEntry("text", "single-label", ("a", "b"), "a test", "none", "0" * 64, files, counts))
    return prepare("corpus", {})


def test_texts_belong_to_the_rows_of_the_arrays(prepared):
    subject = prediction.open_subject(None, str(prepared), {"embedding_dim": 4, "hidden_size": 2})
    assert subject.texts == [f"Row {row} is read. It ends." for row in (2, 6, 10, 14, 18)]
    subject.answer(subject.rows - subject.rows[0], 2)


def test_each_batch_is_timed_in_processes_of_its_own(prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prediction, "BATCHES", {1: 2, 4: 8})
    monkeypatch.setattr(prediction, "WAYS", {"1 process": (1, 1)})
    small = ["--prepared", str(prepared), "--embedding", "4", "--hidden", "2", "--rounds", "2"]
    monkeypatch.setattr("sys.argv", ["benchmarks.prediction", *small, "--json", str(tmp_path / "figures.json")])
    with pytest.raises(SystemExit, match="0"):
        prediction.main()
    printed = capsys.readouterr().out
    measured = json.loads((tmp_path / "figures.json").read_text())
    assert json.loads(printed.splitlines()[-1]) == measured
    assert [(result["span"], result["batch"]) for result in measured["results"]] == [("answer", 1), ("answer", 4)]
    for result in measured["results"]:
        for speed in (result["documents_a_second"], result["documents_a_core_second"]):
            assert 0 < speed["lowest"] <= speed["median"] <= speed["highest"] and result["n"] == 2
    assert "best, batch 4: 1 process, " in printed


def test_images_are_refused(tmp_path):
    with pytest.raises(InputError, match="image data"):
        prediction.open_subject(None, str(prepared_images(tmp_path)), {"embedding_dim": 4, "hidden_size": 2})
