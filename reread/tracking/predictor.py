"""The predictor of a packed model: it reads a request, and gives one row of answers per row of the request.

It needs no MLflow. reread/tracking/served_model.py and reread/tracking/served_baseline.py are its form for MLflow, and
reread.tracking.registry.load_model uses it directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reread import kinds
from reread.storage.files import read_json
from reread.storage.prepared import DESCRIPTION
from reread.tracking.temperature import tempered

# Of several labels: the probability from which a label is given, under "threshold"; without the file it is 0.5.
THRESHOLD = "threshold.json"
# Of one label: the temperature of its probabilities, under "temperature"; without the file they are the model's own.
TEMPERATURE = "temperature.json"


def labels_from(threshold: float, probabilities: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the labels of each row whose probability is at least ``threshold``, with their probabilities."""
    return [{name: value for name, value in row.items() if value >= threshold} for row in probabilities]


class Predictor(ABC):
    """A packed model, opened. ``description``: prepared.json of its data; ``reader``: of the kind of data."""

    def __init__(self, folder: Path) -> None:
        self.description: dict[str, Any] = read_json(folder / DESCRIPTION)
        self.reader = kinds.reader(self.description["kind"])(folder, self.description)
        self.threshold, self.temperature = (
            read_json(folder / name)[Path(name).stem] if (folder / name).is_file() else None
            for name in (THRESHOLD, TEMPERATURE)
        )

    def check(self, model_input: Any) -> Sequence[Any]:
        """Return the rows of a request; ValueError, in one line, for one that cannot be read."""
        return self.reader.check(model_input)

    def answers(self, rows: Sequence[Any], attention: bool = True) -> pd.DataFrame:
        """Return the answers to the rows of ``check``, none to none.

        attention: whether a network with attention answers with it.
        """
        parts = [self.answer(part, attention) for part in self.reader.parts(rows)]
        if not parts:
            return self.answer(self.reader.blank(), attention).iloc[:0]
        table = pd.concat(parts, ignore_index=True)
        if self.threshold is not None:
            likely = labels_from(self.threshold, table["probabilities"])
            table["label"], table["probability"] = [list(row) for row in likely], [list(row.values()) for row in likely]
        if self.temperature is not None:
            rows = [list(row.values()) for row in table["probabilities"]]
            scaled = tempered(rows, self.temperature)
            table["probability"] = scaled.max(axis=1)
            table["probabilities"] = [
                dict(zip(self.description["classes"], row, strict=True)) for row in scaled.tolist()
            ]
        return table

    @abstractmethod
    def answer(self, rows: Sequence[Any], attention: bool) -> pd.DataFrame:
        """Return the answers to some rows, as the reader gives them."""
