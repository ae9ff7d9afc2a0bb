"""A packed network that answers: reread/tracking/served_model.py has the columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import models
from reread import kinds
from reread.batches import answers
from reread.storage.prepared import Prepared
from reread.tracking.predictor import Predictor


class NetworkPredictor(Predictor):
    """The network of a folder with weights, job.json, result.json and the reader's files; on a GPU if there is one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.network = models.load(folder, self.description)
        self.network.to("cuda" if torch.cuda.is_available() else "cpu")
        kinds.load(kinds.kind(self.description["kind"]).collator)

    def answer(self, rows: Sequence[Any], attention: bool) -> pd.DataFrame:
        """Return the answers to some rows, as the reader gives them."""
        reading = self.reader.read(rows)
        prepared = Prepared(Path(), self.description, dict(reading.arrays))
        if attention and reading.words is not None and answers.attends(self.network):
            columns = answers.answer_with_attention(self.network, prepared, reading.words)
            order = [*(name for name in columns if name != "attention"), *reading.columns, "attention"]
        else:
            columns = answers.answer(self.network, prepared)
            order = [*columns, *reading.columns]
        return pd.DataFrame({**columns, **reading.columns})[order]
