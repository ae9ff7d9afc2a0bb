"""A baseline as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, as it does with tracking/served_model.py. The baseline is
arrays (safetensors) and JSON, so that nothing is unpickled. It runs on the CPU.

A request is read, checked and refused as a network's is. It reads the whole of a document. The answer is a DataFrame
with one row per input: ``label``, ``probability`` and ``probabilities``, as in batches/readable.py.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from safetensors.numpy import load_file

import kinds
from batches.readable import columns
from storage.files import read_json


class ServedBaseline(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        folder = Path(context.artifacts["baseline"])
        self.description = read_json(folder / "prepared.json")
        self.reader = kinds.reader(self.description["kind"])(folder, self.description)
        name = read_json(folder / "served.json")["baseline"]
        (baseline,) = (one for one in kinds.kind(self.description["kind"]).baselines if one.name == name)
        self.classes, self.task = self.description["classes"], self.description["task"]
        state = load_file(folder / "model.safetensors")
        assert baseline.serve, f"{name} is not served"
        self.answer = kinds.load(baseline.serve)(state, len(self.classes), self.task)

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        try:
            rows = self.reader.check(model_input)
        except ValueError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from None
        parts = [self._answer(part) for part in self.reader.parts(rows)]
        return pd.concat(parts, ignore_index=True) if parts else self._answer(self.reader.blank()).iloc[:0]

    def _answer(self, rows: Any) -> pd.DataFrame:
        return pd.DataFrame(columns(self.answer(rows), self.classes, self.task))


mlflow.models.set_model(ServedBaseline())
