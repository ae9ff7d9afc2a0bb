"""The copying task: four symbols of eight to be remembered over up to 200 distractors (reread/kinds/symbols.py).

Drawn by numpy from a fixed seed: 22,400 sequences for training, 200 for validation and 500 for test.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reread.goals.symbols import output_names
from reread.kinds.symbols import SymbolRows
from reread.preprocessing.raw import About
from reread.storage.prepared import SPLITS

# None is needed. Declared so that the data set is made when an experiment reads it, and not by `make data`.
ARCHIVES = ()
ALPHABET, POSITIONS, LONGEST_LAG = 8, 4, 200
ROWS = {"train": 22_400, "validation": 200, "test": 500}
ABOUT = About(
    classes=output_names(ALPHABET, POSITIONS),
    source="drawn from a fixed seed, after Arjovsky, Shah and Bengio 2016, arXiv 1511.06464",
    licence="CC0-1.0",
    task="symbols",
)


def rows(archives: Sequence[Path] = (), progress: Callable[[str], None] = lambda line: None) -> SymbolRows:
    """Return the rows; ``archives`` is empty."""
    count = sum(ROWS.values())
    generator = np.random.default_rng(0)
    symbols = generator.integers(ALPHABET, size=(count, POSITIONS + LONGEST_LAG), dtype=np.uint8)
    split = np.repeat(np.arange(len(SPLITS), dtype=np.uint8), [ROWS[name] for name in SPLITS])
    return SymbolRows(ABOUT, symbols, generator.random(count), split, POSITIONS)
