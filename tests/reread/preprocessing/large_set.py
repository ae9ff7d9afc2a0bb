"""The memory that a set of chest X-rays takes, from its rows to its evaluation.

    python -m tests.reread.preprocessing.large_set ROWS SIZE

Random images of ROWS patients' visits pass through raw data, preparation, an epoch of batches, prediction and the
baseline's features in an empty folder, the current one. It prints the peak of anonymous memory and of all resident
pages in MiB: the second has those of memory-mapped files too, which the system takes back when it needs them.
"""

import re
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from reread.batches.batches import Batches
from reread.batches.inference import predict
from reread.evaluation.baselines import _digest, pixel_features
from reread.goals import goal
from reread.preprocessing.manifest import load_raw_rows
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_images import ImageRows
from reread.storage.prepared import SPLITS, open_prepared
from tasks.evaluate import repeated_rows
from tests.reads import every_test_split

LIMIT = 4 << 30
CLASSES = tuple("abcdefghijklmn")


class Network(torch.nn.Module):
    """The mean pixel, weighted per class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, len(CLASSES)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((1, 2, 3))[:, None] * self.weight


def rows(count: int, size: int) -> ImageRows:
    generator = np.random.default_rng(0)
    with tempfile.TemporaryFile(dir=".") as file:
        for start in range(0, count, 256):
            file.write(generator.integers(0, 256, (min(256, count - start), size, size, 1), np.uint8).data)
        file.flush()
        images = np.memmap(file, np.uint8, "r", shape=(count, size, size, 1))
    labels = (generator.random((count, len(CLASSES))) < 0.1).astype(np.uint8)
    patients = np.arange(count) // 4
    split = np.array([0, 0, 0, 0, 0, 0, 0, 1, 2, 2], np.uint8)[patients % 10]
    return ImageRows(About(CLASSES, "random", "none", "multi-label"), images, labels, split, patients.astype(str))


def anonymous() -> float:
    """The anonymous memory of this process now, in MiB (Linux)."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def main(count: int, size: int) -> None:
    # What is not memory-mapped from a file is refused beyond it.
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    peaks = [anonymous()]

    def passed(step: str) -> None:
        peaks.append(anonymous())
        print(f"{step}: {peaks[-1]:.0f} MiB", flush=True)

    add_data_set("large", rows(count, size))
    passed("raw data")
    # Of the tiny images of a quick test there is nothing to reduce.
    prepared = open_prepared(prepare("large", {"size": size // 2} if size >= 16 else None))
    assert len(prepared.labels) == count
    passed("prepared")
    seen = 0
    for batch in Batches(prepared, prepared.rows("train"), "cpu", 64).epoch(1):
        seen += batch.rows
    assert seen == len(prepared.rows("train"))
    passed("batches")
    test = prepared.rows("test")
    scores = predict(Network(), prepared, test)
    score = goal(prepared.task).metrics[0].value(1 / (1 + np.exp(-scores)), prepared.labels[test])
    assert 0.4 < score < 0.6
    passed("evaluation")
    raw = load_raw_rows(prepared, SPLITS)
    assert not repeated_rows(raw).any()
    for split, images in raw.items():
        _digest(images, prepared.labels[prepared.rows(split)])
    assert len(pixel_features(raw)["train"]) == seen
    passed("baseline")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak: {max(peaks):.0f} MiB anonymous after a step, {resident:.0f} MiB resident, limit {LIMIT >> 20} MiB")


if __name__ == "__main__":
    with every_test_split():
        main(int(sys.argv[1]), int(sys.argv[2]))
