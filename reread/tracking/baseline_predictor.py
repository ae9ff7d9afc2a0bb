"""A packed baseline that answers: reread/tracking/served_baseline.py has the columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.numpy import load_file

from reread import kinds
from reread.goals import goal
from reread.storage.files import read_json
from reread.tracking.predictor import Predictor

STATE = "model.safetensors"
# In the folder of a baseline: its name.
SERVED = "served.json"


class BaselinePredictor(Predictor):
    """The baseline of a folder with STATE, SERVED and the reader's files, on the CPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.name = read_json(folder / SERVED)["baseline"]
        (baseline,) = (
            candidate for candidate in kinds.kind(self.description["kind"]).baselines if candidate.name == self.name
        )
        assert baseline.serve, f"{self.name} is not served"
        self.classes, self.task = self.description["classes"], self.description["task"]
        self.state = load_file(folder / STATE)
        self.probabilities = kinds.load(baseline.serve)(self.state, len(self.classes), self.task)

    def answer(self, rows: Sequence[Any], attention: bool) -> pd.DataFrame:
        """Return the answers to some rows; a baseline has no attention."""
        return pd.DataFrame(goal(self.task).columns(self.probabilities(rows), self.classes))
