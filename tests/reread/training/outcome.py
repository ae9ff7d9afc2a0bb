"""The files that two runs that train the same have in common, byte for byte."""

from pathlib import Path

from reread.storage.run_folder import CHECKPOINT, HISTORY, RESULT, WEIGHTS
from reread.training.checkpoint import checkpoints

FILES = (RESULT, HISTORY, WEIGHTS)


def outcome(run_directory: Path) -> dict[str, bytes]:
    """Return the files of a finished run, and those of its newest checkpoint."""
    newest = checkpoints(run_directory)[-1]
    files = {name: (run_directory / name).read_bytes() for name in FILES}
    return files | {f"last {name}": (newest / name).read_bytes() for name in (CHECKPOINT, WEIGHTS)}
