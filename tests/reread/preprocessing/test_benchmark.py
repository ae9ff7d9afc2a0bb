"""The ways that `python -m benchmarks.preprocessing` compares: each does its work, on a corpus of a few documents."""

import numpy as np
import pytest

from benchmarks import preprocessing as benchmark
from reread.preprocessing.manifest import open_data_set


@pytest.fixture
def data(corpus_of):
    splits = ("train", "train", "validation", "test")
    rows = [(row, splits[row % 4], f"Cats run, row {row}. Dogs do.") for row in range(40)]
    corpus_of([{"id": str(row), "labels": [row // 20], "split": split, "text": text} for row, split, text in rows])
    return open_data_set("corpus")


def test_each_way_does_its_work(data):
    assert len(benchmark.ours(data, 1)) == 64
    benchmark.count_vectorizer(data)
    tokens = benchmark.plain_pandas(data)
    assert tokens.shape == (40, 9) and tokens.dtype == np.int32
    assert (tokens[:, 4] == 1).all(), "a number that stands once is unknown"


def test_speeds_are_summed_up():
    assert benchmark.summary(6.0, [1.0, 2.0, 3.0]) == {"median": 3.0, "lowest": 2.0, "highest": 6.0}
    processor, clock, result = benchmark.seconds(lambda: "done")
    assert result == "done" and 0 <= processor < 1 and 0 <= clock < 1


def test_what_cannot_be_measured_is_refused(data, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks.preprocessing", "--data", "corpse"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert "did you mean 'corpus'?" in capsys.readouterr().err
