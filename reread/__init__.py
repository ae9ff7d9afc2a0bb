"""Retests the claim of a paper: versioned data in, a verdict with a confidence interval out.

The functions of ``reread.interface`` are here as well: ``reread.runs("tiny")``, and so is ``reread.data``. They are
imported when one is used, so that a part of the package needs only that part's libraries: ``python -m reread.training``
needs torch, numpy and safetensors.
"""

import importlib
from typing import Any

__all__ = [
    "LoadedModel",
    "__version__",
    "attention",
    "compare",
    "comparisons",
    "curves",
    "data",
    "load_model",
    "predictions",
    "runs",
    "scores",
    "try_",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'reread' has no attribute '{name}'")
    if name == "__version__":
        from importlib.metadata import version

        return version("reread")
    if name == "data":
        return importlib.import_module("reread.data")
    return getattr(importlib.import_module("reread.interface"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
