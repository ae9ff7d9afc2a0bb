"""A data set of a few short sequences of symbols, and an experiment that reads it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reread.goals.symbols import output_names
from reread.kinds.symbols import SymbolRows
from reread.preprocessing.raw import About, add_data_set
from reread.storage.source import ROOT

ALPHABET, POSITIONS = 3, 2
OUTPUTS = output_names(ALPHABET, POSITIONS)


def make_project(root: Path, experiment: Mapping[str, Any], splits: Sequence[int], longest_lag: int) -> Path:
    """Write the data set ``few``, params.yaml and experiments/few.yaml to ``root``, and return it.

    splits: the rows of each split.
    """
    generator, rows = np.random.default_rng(0), sum(splits)
    symbols = generator.integers(ALPHABET, size=(rows, POSITIONS + longest_lag), dtype=np.uint8)
    split = np.repeat(np.arange(3, dtype=np.uint8), splits)
    about = About(OUTPUTS, "made by a test", "none", "symbols")
    sequences = SymbolRows(about, symbols, generator.random(rows), split, POSITIONS)
    add_data_set("few", sequences, root / "data", root / "data.manifest.json")
    parameters = yaml.safe_load(Path(ROOT, "params.yaml").read_text())
    parameters["preprocessing"]["few"] = {}
    (root / "params.yaml").write_text(yaml.safe_dump(parameters))
    (root / "experiments").mkdir()
    (root / "experiments/few.yaml").write_text(yaml.safe_dump(experiment))
    return root
