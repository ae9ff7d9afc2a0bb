"""Golden runs: the losses, the validation metrics and the weights of small runs do not change.

On a kind of CPU and a version of torch that were recorded, the last bit counts. On others, values agree with another
recording within TOLERANCE.
"""

from pathlib import Path

import pytest

from reread.storage.files import read_json
from tests.golden import record
from tests.golden.cases import BATCH_SIZE, CASES, EPOCHS
from tests.golden.data import TRAINING_ROWS

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_golden_run_is_as_recorded(name, directory):
    recorded = record.run(name, directory)
    assert len(recorded["losses"]) == EPOCHS * TRAINING_ROWS // BATCH_SIZE
    path = record.recording()
    if path.is_file():
        assert recorded == read_json(path)[name]
        return
    (expected, *_) = (read_json(path)[name] for path in sorted(record.FOLDER.glob("*.json")))
    assert numbers(recorded) == pytest.approx(numbers(expected), rel=TOLERANCE)


def numbers(recorded: dict) -> list[float]:
    """All losses and validation losses of a run, in order."""
    losses = [*recorded["losses"], *(row["validation_loss"] for row in recorded["validation"])]
    return [float.fromhex(loss) for loss in losses]
