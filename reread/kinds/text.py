"""Text: documents of sentences of words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from reread.kinds import Baseline, Kind
from reread.storage.errors import InputError
from reread.storage.settings import Range

Share = Annotated[float, Range(0, 1, exclusive=True)]


@dataclass(frozen=True)
class LengthQuantile:
    """The shares of the training split's sentences and of its documents that keep their whole length."""

    words: Share = 0.95
    sentences: Share = 0.95


@dataclass(frozen=True)
class WordVectors:
    """Settings of word2vec: numbers per word, neighbours to each side, and passes over the training split."""

    size: Annotated[int, Range(1, 4096)] = 200
    window: Annotated[int, Range(1, 100)] = 5
    epochs: Annotated[int, Range(1, 1000)] = 5


@dataclass(frozen=True)
class Tokenizer:
    """A file of the library ``tokenizers`` by which documents become tokens, in place of words.

    path: from the current folder, in no key; sha256: of the file, 64 hex digits.
    """

    path: str = field(default="", metadata={"key": False})
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise InputError("the tokenizer has no path: give that of a tokenizer.json")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InputError(f"sha256 is '{self.sha256}': give the 64 hex digits that `sha256sum FILE` prints")


@dataclass(frozen=True)
class Settings:
    """The preparation of documents.

    length_quantile  where sentences and documents are truncated
    min_count        a word seen less often in the training split becomes <unk>
    rows_per_class   at most this many rows per class in each split; None: all
    word_vectors     word2vec of the training split; None: none are trained
    tokenizer        tokens of a file's tokenizer in place of words; each document is one sentence of them; None: words
    """

    length_quantile: LengthQuantile = LengthQuantile()
    min_count: Annotated[int, Range(1)] = 5
    rows_per_class: Annotated[int, Range(1)] | None = None
    word_vectors: WordVectors | None = None
    tokenizer: Tokenizer | None = None


def token_ids(about: Mapping[str, int | None]) -> list[int]:
    """Return the tokenizer's id of each number of a token; 0 for padding or unknown where it has none.

    about: ``tokenizer`` of prepared.json.
    """
    special = [about["padding"], about["unknown"]]
    others = [token_id for token_id in range(about["size"] or 0) if token_id not in special]
    return [*(token_id or 0 for token_id in special), *others]


KIND = Kind(
    row="document",
    reads="documents as raw text",
    write_raw="reread.preprocessing.raw_text:write",
    open_raw="reread.preprocessing.raw_text:TextDataSet",
    settings=Settings,
    prepare="reread.preprocessing.documents:prepare",
    libraries="reread.preprocessing.documents:libraries",
    collator="reread.batches.text:Collator",
    row_array="word_counts",
    padding="reread.batches.text_padding:pairs",
    reader="reread.preprocessing.reading:TextReader",
    explain=("reread.evaluation.attention:explain",),
    baselines=(
        Baseline(
            name="tf-idf",
            title="TF-IDF + logistic regression",
            grid=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
            features="reread.evaluation.baselines:word_features",
            fit="reread.evaluation.baselines:logistic_regression",
            serve="reread.evaluation.linear_models:serve_words",
            knows="reread.evaluation.known_features:of_words",
        ),
        Baseline(
            name="nb-svm",
            title="NB-SVM on unigrams and bigrams",
            grid=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            features="reread.evaluation.baselines:bigram_features",
            fit="reread.evaluation.baselines:nb_svm",
            serve="reread.evaluation.linear_models:serve_bigrams",
            knows="reread.evaluation.known_features:of_bigrams",
        ),
        Baseline(
            name="tf-idf-ridge",
            title="TF-IDF + ridge regression",
            grid=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
            features="reread.evaluation.baselines:word_features",
            fit="reread.evaluation.regressors:ridge",
            serve="reread.evaluation.regressors:serve_words",
            knows="reread.evaluation.known_features:of_words",
            tasks=("regression",),
        ),
        Baseline(
            name="tf-idf-boosting",
            title="gradient boosting on TF-IDF",
            grid=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
            features="reread.evaluation.regressors:reduced_word_features",
            fit="reread.evaluation.regressors:boosting",
            tasks=("regression",),
        ),
        Baseline(
            name="char-svm",
            title="SVM on character n-grams",
            grid=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
            features="reread.evaluation.baselines:character_features",
            fit="reread.evaluation.baselines:linear_svm",
            serve="reread.evaluation.linear_models:serve_characters",
            knows="reread.evaluation.known_features:of_characters",
        ),
    ),
)
