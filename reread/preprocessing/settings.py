"""The entries of params.yaml under ``preprocessing: NAME``: the Settings of the data set's kind
(reread/kinds/KIND.py)."""

from collections.abc import Mapping
from typing import Any

from reread import kinds
from reread.storage.errors import InputError
from reread.storage.settings import from_json

# What the settings of a preparation name beside those of its kind: which fold it is (reread/preprocessing/folds.py).
FOLD = "fold"


def settings_for(kind: str, name: str, values: Mapping[str, Any] | None) -> Any:
    """Return the settings of data set ``name`` of ``kind``; a missing section or value has its default.

    InputError for an unknown name. reread.planning.validation checks values before anything is prepared by them.
    """
    try:
        return from_json(
            kinds.load(kinds.kind(kind).settings), {key: value for key, value in (values or {}).items() if key != FOLD}
        )
    except InputError as error:
        raise InputError(f"preprocessing.{name}: {error}") from None
