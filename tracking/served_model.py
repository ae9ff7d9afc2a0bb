"""A network as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, with the weights (safetensors) and three JSON files
beside it, so that nothing is unpickled. The modules that it needs lie in the model's own code folder. It runs on a
GPU where PyTorch sees one (CUDA_VISIBLE_DEVICES= hides it), else on the CPU.

    text   DataFrame with a column ``text``, one document a row: any text, also none
    image  uint8 array [N, H, W, C], pixels 0 to 255, of the height and width that the network was trained on

Answers a DataFrame, one row a document or image, none for none: ``label``, ``probability`` and ``probabilities`` as
batches/answers.py has them. Of a document also how much of it the network saw: ``words_read``, ``words_unknown`` (those
of them that are not in the vocabulary: an answer to a text of which all are says nothing) and ``cut`` (it was longer
than what the network reads). A network with attention adds ``attention``, unless the parameter ``attention`` is false.

What cannot be read is refused as BAD_REQUEST, which the scoring server answers as 400.
"""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc import PythonModel

# What is in memory at a time beside the texts and the answer: so many documents, or fewer of so many characters.
DOCUMENTS_AT_A_TIME = 1024
CHARACTERS_AT_A_TIME = 10_000_000


class ServedModel(PythonModel):
    def load_context(self, context) -> None:
        # All that a prediction needs is imported here: in a process that has modules of these names already, the
        # registry has put those aside for as long as this takes.
        import models
        from batches import answers
        from storage.files import read_json
        from storage.prepared import Prepared

        folder = Path(context.artifacts["network"])
        self.description = read_json(folder / "prepared.json")
        self.network = models.load(folder, self.description)
        self.network.to("cuda" if torch.cuda.is_available() else "cpu")
        self.answers, self.prepared = answers, Prepared
        if self.description["kind"] == "text":
            from preprocessing import reading
            from preprocessing.vocabulary import word_index

            self.reading = reading
            self.index = word_index(read_json(folder / "vocabulary.json"))

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(self, context, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        if self.description["kind"] == "image":
            return self._answer_images(np.asarray(model_input))
        texts = _texts(model_input)
        attention = (params or {}).get("attention", True) and self.answers.attends(self.network)
        parts = [self._answer_documents(part, attention) for part in _parts(texts)]
        if not parts:
            # One document is read for the names of the columns.
            return self._answer_documents([""], attention).iloc[:0]
        return pd.concat(parts, ignore_index=True)

    def _answer_documents(self, texts: list[str], attention: bool) -> pd.DataFrame:
        kept = [self.description["lengths"][level]["kept"] for level in ("sentences", "words")]
        reading = self.reading.read(texts, self.index, *kept)
        prepared = self.prepared(Path(), self.description, reading.arrays)
        if attention:
            columns = self.answers.answer_with_attention(self.network, prepared, reading.words)
        else:
            columns = self.answers.answer(self.network, prepared)
        seen = {name: getattr(reading, name) for name in ("words_read", "words_unknown", "cut")}
        order = ["label", "probability", "probabilities", *seen, *(["attention"] if attention else [])]
        return pd.DataFrame({**columns, **seen})[order]

    def _answer_images(self, images: np.ndarray) -> pd.DataFrame:
        expected = tuple(self.description["arrays"]["images"]["shape"][1:])
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise _refused(f"images must be uint8 [N, H, W, C] of {expected}, not {images.dtype} {images.shape}")
        if not len(images):
            return self._answer_images(np.zeros((1, *expected), np.uint8)).iloc[:0]
        prepared = self.prepared(Path(), self.description, {"images": images})
        return pd.DataFrame(self.answers.answer(self.network, prepared))


def _texts(model_input: Any) -> list[str]:
    """The column ``text``; MlflowException names the first row that is no text."""
    if not isinstance(model_input, pd.DataFrame) or "text" not in model_input:
        raise _refused("there is no column 'text': send a table with one, a document a row")
    texts = model_input["text"].tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            found = "null" if pd.api.types.is_scalar(text) and pd.isna(text) else f"of type {type(text).__name__}"
            raise _refused(f"row {row} of the column 'text' is {found}: send text, '' for an empty document")
    return texts


def _parts(texts: list[str]):
    """Yield the texts in order, some at a time: DOCUMENTS_AT_A_TIME, or as many as CHARACTERS_AT_A_TIME allows."""
    part, characters = [], 0
    for text in texts:
        if part and (len(part) == DOCUMENTS_AT_A_TIME or characters + len(text) > CHARACTERS_AT_A_TIME):
            yield part
            part, characters = [], 0
        part.append(text)
        characters += len(text)
    if part:
        yield part


def _refused(message: str) -> MlflowException:
    return MlflowException(message, error_code=BAD_REQUEST)


mlflow.models.set_model(ServedModel())
