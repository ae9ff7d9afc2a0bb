"""A network as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, with the weights (safetensors) and four JSON files, so
that nothing is unpickled. ``mlflow models serve`` imports the modules from the model's own code folder; the project's
``reread.tracking.registry.load_model`` uses the project's modules. It runs on a GPU where PyTorch sees one
(CUDA_VISIBLE_DEVICES= hides it), else on the CPU.

A request is read by the reader of the data's kind (kinds.Reader):

    text   DataFrame with a column ``text``, one document per row; empty texts are accepted
    image  uint8 array [N, H, W, C], pixels 0 to 255, of the height and width that the network was trained on

The answer is a DataFrame with one row per input (empty for empty input): ``label``, ``probability`` and
``probabilities`` as in reread/goals, and the reader's columns. For a document these are ``words_read``,
``words_unknown`` (of those, the words outside the vocabulary) and ``cut`` (it was truncated). A network with attention
adds ``attention``, unless the parameter ``attention`` is false.

Input that cannot be read raises BAD_REQUEST, which the scoring server answers as 400.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from reread.tracking.network_predictor import NetworkPredictor


class ServedModel(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self.predictor = NetworkPredictor(Path(context.artifacts["network"]))

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        try:
            rows = self.predictor.check(model_input)
        except ValueError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from None
        return self.predictor.answers(rows, (params or {}).get("attention", True))


set_model(ServedModel())
