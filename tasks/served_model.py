"""A network as it is served: raw text or pixels in, labels with their probabilities out.

MLflow keeps this file with the model and runs it on loading, with the weights (safetensors) and three JSON files
beside it, so that nothing is unpickled. The modules that it needs lie in the model's own code folder.

    text   DataFrame with a column ``text``, one document a row
    image  uint8 array [N, H, W, C], pixels 0 to 255, of the height and width that the network was trained on

Answers a DataFrame, one row a document or image: ``label`` (the likeliest class), ``probability`` (of it) and
``probabilities`` (of each class by name). Where a row can have several labels, ``label`` is the list of those with a
probability of 0.5 or more, and ``probability`` the list of theirs. A network with attention adds ``attention``: for
each sentence that was read its ``weight``, its ``words`` and the weight of each in the sentence, ``word_weights``.
"""

from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel

LIKELY = 0.5
DOCUMENTS_AT_A_TIME = 128


class ServedModel(PythonModel):
    def load_context(self, context) -> None:
        import models
        from storage.files import read_json

        folder = Path(context.artifacts["network"])
        self.description = read_json(folder / "prepared.json")
        self.network = models.load(folder, self.description)
        if self.description["kind"] == "text":
            from preprocessing.vocabulary import word_index

            self.index = word_index(read_json(folder / "vocabulary.json"))

    # MLflow wants a type here and takes no union: images are a numpy array.
    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        if self.description["kind"] == "text":
            texts = list(model_input["text"])
            parts = [
                self._read_documents(texts[start : start + DOCUMENTS_AT_A_TIME])
                for start in range(0, len(texts), DOCUMENTS_AT_A_TIME)
            ]
            return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        from models import feeding

        images = np.asarray(model_input)
        expected = tuple(self.description["arrays"]["images"]["shape"][1:])
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise ValueError(f"images must be uint8 [N, H, W, C] of {expected}, not {images.dtype} {images.shape}")
        prepared = self._as_prepared(images=images)
        return self._answer(torch.from_numpy(feeding.predict(self.network, prepared, np.arange(len(images)))))

    def _read_documents(self, texts: list[str]) -> pd.DataFrame:
        from models import feeding
        from preprocessing.text import keep, number, segment

        kept = [self.description["lengths"][level]["kept"] for level in ("sentences", "words")]
        sentences = [segment(text) for text in texts]
        tokens, counts = zip(*(number(one, self.index, *kept) for one in sentences), strict=True)
        word_counts = np.stack(counts)
        prepared = self._as_prepared(
            tokens=np.concatenate(tokens),
            word_counts=word_counts,
            sentence_counts=(word_counts > 0).sum(axis=1, dtype=np.int32),
        )
        arguments = feeding.inputs(prepared, np.arange(len(texts)))
        with torch.no_grad():
            if not hasattr(self.network, "attend"):
                return self._answer(self.network(*arguments))
            logits, of_words, of_sentences = self.network.attend(*arguments)
        answer = self._answer(logits)
        answer["attention"] = [
            [
                {
                    "weight": float(of_sentences[row, place]),
                    "words": words,
                    "word_weights": of_words[row, place, : len(words)].tolist(),
                }
                for place, words in enumerate(keep(document, *kept))
            ]
            for row, document in enumerate(sentences)
        ]
        return answer

    def _answer(self, logits: torch.Tensor) -> pd.DataFrame:
        """logits float [N, K] -> one row an input."""
        classes = np.array(self.description["classes"])
        if self.description["task"] == "multi-label":
            probabilities = torch.sigmoid(logits.double()).numpy()
            likely = [row >= LIKELY for row in probabilities]
            label = [classes[chosen].tolist() for chosen in likely]
            probability = [row[chosen].tolist() for row, chosen in zip(probabilities, likely, strict=True)]
        else:
            probabilities = torch.softmax(logits.double(), dim=1).numpy()
            label = classes[probabilities.argmax(axis=1)].tolist()
            probability = probabilities.max(axis=1).tolist()
        by_name = [dict(zip(self.description["classes"], row.tolist(), strict=True)) for row in probabilities]
        return pd.DataFrame({"label": label, "probability": probability, "probabilities": by_name})

    def _as_prepared(self, **arrays: np.ndarray):
        from storage.prepared import Prepared

        return Prepared(Path(), self.description, arrays)


mlflow.models.set_model(ServedModel())
