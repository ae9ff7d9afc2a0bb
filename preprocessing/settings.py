"""What params.yaml may have under ``preprocessing: NAME``: the Settings of the data set's kind (kinds/KIND.py)."""

from collections.abc import Mapping
from typing import Any

import kinds


def settings_for(kind: str, name: str, values: Mapping[str, Any] | None) -> Any:
    """Return the settings of data set ``name`` of ``kind``; a missing section or value has its default."""
    return kinds.load(kinds.kind(kind).settings).read({} if values is None else values, f"preprocessing.{name}")
