"""A network as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, with the weights (safetensors) and three JSON files
beside it, so that nothing is unpickled. The modules that it needs lie in the model's own code folder. It runs on a
GPU where PyTorch sees one (CUDA_VISIBLE_DEVICES= hides it), else on the CPU.

What a request is, the reader of the data's kind says (kinds.Reader):

    text   DataFrame with a column ``text``, one document per row: any text, also an empty one
    image  uint8 array [N, H, W, C], pixels 0 to 255, of the height and width that the network was trained on

The answer is a DataFrame with one row per input (empty for empty input): ``label``, ``probability`` and
``probabilities`` as in batches/answers.py, and the reader's columns. For a document these are ``words_read``,
``words_unknown`` (those of them that are not in the vocabulary: where all are, the answer rests on nothing) and ``cut``
(it was longer than what the network reads). A network with attention adds ``attention``, unless the parameter
``attention`` is false.

Input that cannot be read is refused as BAD_REQUEST, which the scoring server answers as 400.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc import PythonModel


class ServedModel(PythonModel):
    def load_context(self, context) -> None:
        # Everything that a prediction needs is imported here: in a process that has modules of these names already, the
        # registry has put those aside for as long as this takes.
        import kinds
        import models
        from batches import answers
        from storage.files import read_json
        from storage.prepared import Prepared

        folder = Path(context.artifacts["network"])
        self.description = read_json(folder / "prepared.json")
        self.network = models.load(folder, self.description)
        self.network.to("cuda" if torch.cuda.is_available() else "cpu")
        self.answers, self.prepared = answers, Prepared
        kind = kinds.kind(self.description["kind"])
        kinds.load(kind.collator)
        self.reader = kinds.load(kind.reader)(folder, self.description)

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(self, context, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        try:
            rows = self.reader.check(model_input)
        except ValueError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from None
        attention = (params or {}).get("attention", True) and self.answers.attends(self.network)
        parts = [self._answer(part, attention) for part in self.reader.parts(rows)]
        if not parts:
            return self._answer(self.reader.blank(), attention).iloc[:0]
        return pd.concat(parts, ignore_index=True)

    def _answer(self, rows: Any, attention: bool) -> pd.DataFrame:
        reading = self.reader.read(rows)
        prepared = self.prepared(Path(), self.description, reading.arrays)
        if attention and reading.words is not None:
            columns = self.answers.answer_with_attention(self.network, prepared, reading.words)
            order = [*(name for name in columns if name != "attention"), *reading.columns, "attention"]
        else:
            columns = self.answers.answer(self.network, prepared)
            order = [*columns, *reading.columns]
        return pd.DataFrame({**columns, **reading.columns})[order]


mlflow.models.set_model(ServedModel())
