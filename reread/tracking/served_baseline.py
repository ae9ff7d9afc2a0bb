"""A baseline as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, as it does with reread/tracking/served_model.py. The
baseline is arrays (safetensors) and JSON, so that nothing is unpickled. It runs on the CPU.

A request is read, checked and refused as a network's is. It reads the whole of a document. The answer is a DataFrame
with one row per input: ``label``, ``probability`` and ``probabilities``, as in reread/goals.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from reread.tracking.baseline_predictor import BaselinePredictor


class ServedBaseline(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self.predictor = BaselinePredictor(Path(context.artifacts["baseline"]))

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        try:
            rows = self.predictor.check(model_input)
        except ValueError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from None
        return self.predictor.answers(rows)


set_model(ServedBaseline())
