"""Two functions on the CPU as cases of ``python -m cuda_ext.pairs``: each call notes its process and its name."""

import os
from pathlib import Path

import torch
from torch import Tensor

from cuda_ext.bench import ROTATED_BYTES
from cuda_ext.case import Case

NOTES = "TEST_NOTES_OF_CALLS"


def noted(name, x: Tensor) -> Tensor:
    with open(Path(os.environ[NOTES]), "a", encoding="utf-8") as notes:
        notes.write(f"{os.getpid()} {name}\n")
    return x.cumsum(0)


def failing(x: Tensor) -> Tensor:
    raise RuntimeError("out of tiles")


def bench_cases():
    yield Case(
        "sums",
        "1000",
        torch.float32,
        lambda: (torch.randn(1000),),
        lambda x: noted("this", x),
        {"other": lambda x: noted("other", x), "failing": failing},
        lambda x: x.cumsum(0),
        ROTATED_BYTES,
    )
