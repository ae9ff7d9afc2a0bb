"""A tokenizer of its own: a file of the library ``tokenizers``, as a pretrained encoder has one.

Tokens have other numbers than the tokenizer's ids, so that all networks read them: 0 is padding, 1 is unknown, and the
other ids follow in their order (``reread.kinds.text.token_ids``). Used to prepare data sets and by served models.
"""

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reread.kinds.text import token_ids
from reread.preprocessing.vocabulary import PADDING, UNKNOWN
from reread.storage.errors import InputError

if TYPE_CHECKING:
    from typing import TypeGuard

    from reread.kinds.text import Settings as TextSettings
    from reread.kinds.text import Tokenizer as TokenizerFile

    class WithTokenizer(TextSettings):
        """The settings of texts with a tokenizer of their own, for type checkers."""

        tokenizer: TokenizerFile


FILE = "tokenizer.json"
PACKAGE = "tokenizers"


def asked(settings: Any) -> "TypeGuard[WithTokenizer]":
    """Return whether the settings of a data set name a tokenizer of its own; those of other kinds than text do not."""
    return getattr(settings, "tokenizer", None) is not None


class Tokenizer:
    """The tokenizer of a file. InputError where the library is missing, and for a file that is no tokenizer."""

    def __init__(self, path: Path) -> None:
        try:
            library = importlib.import_module(PACKAGE)
        except ModuleNotFoundError:
            raise InputError(f"{path} needs the package '{PACKAGE}', which is not installed here: install it") from None
        # Its threads would be forked with the processes of a run.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.encoder = library.Tokenizer.from_file(str(path))
            words = self.encoder.get_vocab(with_added_tokens=True)
            given, model = content.get("padding") or {}, content["model"]
        except FileNotFoundError:
            raise InputError(f"{path} is missing: give the path of a tokenizer.json") from None
        except Exception as error:  # the library has no class of its own
            reason = str(error).splitlines() or ["no reason given"]
            raise InputError(f"{path} is no file of '{PACKAGE}' ({reason[0]}): give a tokenizer.json") from None
        self.encoder.no_padding()
        self.encoder.no_truncation()
        self.size = max(words.values()) + 1
        padding = words.get(given.get("pad_token")), *(words.get(name) for name in ("[PAD]", "<pad>"))
        self.padding = next((token_id for token_id in padding if token_id is not None), None)
        self.unknown = model.get("unk_id", words.get(model.get("unk_token")))
        names = {number: word for word, number in words.items()}
        ids = token_ids(self.about)
        self.numbers = np.zeros(self.size, np.int32)
        self.numbers[ids[2:]] = np.arange(2, len(ids))
        for number, token_id in enumerate((self.padding, self.unknown)):
            if token_id is not None:
                self.numbers[token_id] = number
        special = [names.get(token_id) if token_id is not None else None for token_id in (self.padding, self.unknown)]
        self.vocabulary = [special[0] or f"{PADDING} of no token", special[1] or f"{UNKNOWN} of no token"]
        self.vocabulary += [names.get(token_id, f"{UNKNOWN} {token_id}") for token_id in ids[2:]]

    @property
    def about(self) -> dict[str, int | None]:
        return {"size": self.size, "padding": self.padding, "unknown": self.unknown}

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Return the tokens of each text by their numbers, int32 [tokens]."""
        # UTF-8 cannot encode a lone surrogate.
        encoded = self.encoder.encode_batch([text.encode("utf-8", "replace").decode() for text in texts])
        return [self.numbers[encoding.ids] for encoding in encoded]
