"""Swish by its kernel beside PyTorch's ReLU, as cases for a claim on their time:

    python -m cuda_ext.pairs benchmarks.swish_and_relu "131072 x 1024 beta 1, float32" F.relu --output swish-relu.jsonl

ReLU computes something else, so it is no peer in the table of the kernel.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch.nn import functional

from cuda_ext.case import Case, backward_of
from cuda_ext.swish.cases import bench_cases as cases_of_swish


def bench_cases() -> Iterator[Case]:
    """Yield the cases of Swish without a trained beta, both passes, with F.relu as their only peer."""
    for case in cases_of_swish():
        if case.shape.endswith("beta 1"):
            backward = case.kernel.endswith("backward")
            yield replace(case, peers={"F.relu": backward_of(functional.relu) if backward else functional.relu})
