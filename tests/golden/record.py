"""Run the golden cases and record them:  python -m tests.golden.record [CASE ...]

recorded/CPU-torch-VERSION.json holds, per case, the loss of each step, the validation metrics of each epoch (floats in
hexadecimal, which is exact), and the sha256 of the final weights. One file per kind of CPU and version of torch: bits
agree within one file alone. Record again only where a change of the numbers is meant, and for another kind of CPU from
a source without changes.
"""

import argparse
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reread.storage.files import read_json, write_json
from reread.storage.prepared import open_prepared
from reread.training import loop
from reread.training.device import configure
from reread.training.machine import cpu
from reread.training.progress import Progress
from reread.training.settings import TrainingJob
from reread.training.step import Step
from tests.golden.cases import CASES, job
from tests.golden.data import WRITERS

FOLDER = Path(__file__).resolve().parent / "recorded"
VALIDATION = ("validation_loss", "validation_accuracy", "validation_score")


def recording() -> Path:
    """The file for this kind of CPU and this version of torch."""
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9]+', '-', cpu())}-torch-{torch.__version__}.json"


def run(name: str, directory: Path) -> dict[str, Any]:
    """Train a case on the CPU, in ``directory``, and return what is recorded of it."""
    case = CASES[name]
    data = directory / case.data
    if not data.is_dir():
        WRITERS[case.data](data)
    path = directory / f"{name}.json"
    write_json(path, job(case, str(data), str(directory / name)))
    read = TrainingJob.read(path)
    read.run_directory.mkdir()
    with process_settings(), recorded_losses() as losses:
        configure(read.training)
        network, state = loop.train(read, open_prepared(data), torch.device("cpu"), Progress(read, None, quiet=True))
    return {
        "losses": [loss.item().hex() for loss in losses],
        "validation": [{column: row[column].hex() for column in VALIDATION} for row in state.history],
        "weights_sha256": digest(network),
    }


@contextmanager
def recorded_losses() -> Iterator[list[torch.Tensor]]:
    """Within the block, collect the loss of each training step, float32 []."""
    losses: list[torch.Tensor] = []
    original = Step.__call__

    def call(step: Step, *arguments: Any, **keywords: Any) -> Any:
        outcome = original(step, *arguments, **keywords)
        losses.append(outcome.loss.detach().clone())
        return outcome

    Step.__call__ = call
    try:
        yield losses
    finally:
        Step.__call__ = original


@contextmanager
def process_settings() -> Iterator[None]:
    """Restore the number of threads and determinism after the block."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def digest(network: nn.Module) -> str:
    """sha256 of all parameters and buffers in their order, without their names."""
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def record(names: Iterable[str]) -> None:
    """Run the named cases and replace their recorded values for this machine."""
    path = recording()
    recorded = read_json(path) if path.is_file() else {}
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            recorded[name] = run(name, Path(directory))
            print(f"{name}: {len(recorded[name]['losses'])} steps", file=sys.stderr)
    FOLDER.mkdir(exist_ok=True)
    write_json(path, {name: recorded[name] for name in CASES if name in recorded})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help="all, if none is named")
    record(parser.parse_args().cases or CASES)
