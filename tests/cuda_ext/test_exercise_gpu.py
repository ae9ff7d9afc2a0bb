"""The exercise that compute-sanitizer watches: every kernel of the sources."""

import re

import pytest
import torch

from cuda_ext import build, exercise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Asked for its attributes, never launched.
NOT_LAUNCHED = {"probe"}


def kernels_of_the_sources():
    names = set()
    for path in [*build.SOURCES.rglob("*.cu"), *build.SOURCES.rglob("*.cuh")]:
        declared = r"__global__ void(?:\s+__launch_bounds__\(.*?\))?\s+(\w+)\("
        names |= set(re.findall(declared, path.read_text(encoding="utf-8"), re.DOTALL))
    return names - NOT_LAUNCHED


def test_every_kernel_is_exercised():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        exercise.exercise()
    ran = {event.name for event in profile.events()}
    words = {word for name in ran for word in re.findall(r"\w+", name)}
    assert kernels_of_the_sources() - words == set()
