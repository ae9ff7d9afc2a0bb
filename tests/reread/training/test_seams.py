"""A new network, objective, activation, optimiser, schedule or augmentation is one new file, and nothing else."""

import json
import os
import subprocess
import sys

import pytest

from tests.rooms import copy_rooms

ROOMS = ("storage", "batches", "goals", "kinds", "runtime", "training")
NEW = {
    "models/objectives/margin_reconstruction.py": '''
"""Margin of class lengths and error of reconstruction, as Sabour, Frosst and Hinton 2017 train capsules."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn import functional

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    weight: Annotated[float, Range(0, 1)] = 0.0005


class MarginReconstruction:
    def __init__(self, weight):
        self.weight = weight

    def loss(self, network, outputs, target, inputs):
        lengths, capsules = outputs
        one_hot = functional.one_hot(target, lengths.shape[1])
        images = network.reconstruct((capsules * one_hot.unsqueeze(-1)).flatten(1))
        error = (images - inputs[0].flatten(1)).square().sum(1).mean()
        return self.held_out_loss(lengths, target) + self.weight * error

    def held_out_loss(self, lengths, target):
        one_hot = functional.one_hot(target, lengths.shape[1])
        margins = one_hot * (0.9 - lengths).relu().square() + 0.5 * (1 - one_hot) * (lengths - 0.1).relu().square()
        return margins.sum(1).mean()

    def probabilities(self, lengths):
        return lengths / lengths.sum(dim=1, keepdim=True)

    def correct(self, lengths, target):
        return lengths.argmax(dim=1) == target


def build(settings, description, labels):
    return MarginReconstruction(settings.weight)
''',
    "models/activations/sine.py": """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Settings:
    frequency: float = 1.0


KERNEL = None


class Sine(nn.Module):
    def __init__(self, frequency):
        super().__init__()
        self.frequency = frequency

    def forward(self, x):
        return torch.sin(self.frequency * x)


def build(channels, settings):
    return Sine(settings.frequency)
""",
    "models/small_capsules.py": """
from dataclasses import dataclass
from typing import Annotated

from torch import nn

from models.activations import make_activation
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"


@dataclass(frozen=True)
class Settings:
    size: Annotated[int, Range(1, 64)] = 4
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")


DEBUG = Settings()


class Capsules(nn.Module):
    def __init__(self, settings, pixels, classes):
        super().__init__()
        self.classes = classes
        self.read = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, 16), make_activation(settings.activation, 16),
            nn.Linear(16, classes * settings.size),
        )
        self.reconstruct = nn.Linear(classes * settings.size, pixels)

    def parameter_groups(self):
        parts = ((self.read, 1.0), (self.reconstruct, 0.5))
        return [
            {"params": list(part.parameters()), "lr_scale": scale, "weight_decay": False, "lookup": False}
            for part, scale in parts
        ]

    def forward(self, images):
        capsules = self.read(images).unflatten(1, (self.classes, -1))
        squares = capsules.square().sum(-1)
        return squares / (1 + squares), capsules


def build(settings, description):
    _, *sides = description["arrays"]["images"]["shape"]
    return Capsules(settings, sides[0] * sides[1] * sides[2], len(description["classes"]))
""",
    "reread/training/optimisers/signs.py": '''
from dataclasses import dataclass

import torch

from reread.training.optimisers import decaying


@dataclass(frozen=True)
class Settings:
    slower: float = 1.0


class Signs(torch.optim.Optimizer):
    """Steps by signs, smaller from step to step, which it counts in plain numbers."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"] / state["steps"] ** group["slower"])


def build(groups, learning_rate, settings):
    return Signs(decaying(groups, 0.0), {"lr": learning_rate, "slower": settings.slower})
''',
    "reread/training/schedules/sawtooth.py": """
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    lowest: float = 0.1


def factor(step, steps_per_epoch, epochs, settings):
    return 1 - (1 - settings.lowest) * (step % steps_per_epoch) / steps_per_epoch
""",
    "reread/batches/augmentations/invert.py": """
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Settings:
    share: float = 0.1


def apply(images, generator, settings):
    chosen = torch.rand(len(images), generator=generator, device=images.device) < settings.share
    return torch.where(chosen.view(-1, 1, 1, 1), -images, images)
""",
}
TRAIN_AND_ANSWER = """
import numpy as np, sys, models
from pathlib import Path
from reread.batches.inference import predict
from models.objectives import to_probabilities
from reread.storage.prepared import open_prepared
from reread.training.__main__ import attempt
from reread.training.processes import SINGLE_PROCESS
job, run, data = map(Path, sys.argv[1:])
assert attempt(job, None, False, SINGLE_PROCESS) == 0
prepared = open_prepared(data)
network = models.load(run, prepared.description)
scores = predict(network, prepared, prepared.rows("validation"))
probabilities = to_probabilities(network.objective, scores)
assert np.allclose(probabilities, scores / scores.sum(axis=1, keepdims=True)) and probabilities.shape == (16, 3)
"""


@pytest.fixture
def house(tmp_path):
    """A copy of the rooms that training needs."""
    return copy_rooms(tmp_path / "house", "cuda_ext", "models", *(f"reread/{room}" for room in ROOMS))


def sources(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def test_one_file_each_is_all_that_they_need(house, write_job, image_directory):
    before = sources(house)
    for name, text in NEW.items():
        (house / name).write_text(text.lstrip())
    settings = {
        "optimizer": {"name": "signs", "slower": 0.1},
        "learning_rate": 0.01,
        "schedule": {"name": "sawtooth", "lowest": 0.5},
        "objective": {"name": "margin_reconstruction", "weight": 0.001},
        "augmentation": [{"name": "invert", "share": 0.05}],
        "max_epochs": 12,
        "patience": 12,
    }
    network = {"activation": {"name": "sine", "frequency": 2.0}}
    job = write_job(image_directory, model="small_capsules", network=network, training=settings)
    environment = {**os.environ, "PYTHONPATH": str(house), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    run = json.loads(job.read_text())["run_directory"]
    command = [sys.executable, "-W", "error", "-c", TRAIN_AND_ANSWER, job, run, image_directory]
    done = subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    with open(f"{run}/result.json") as file:
        result = json.load(file)
    assert result["validation"]["score"] > 0.6, "classes are told apart, of which chance knows a third"
    after = sources(house)
    assert {str(name) for name in after.keys() - before.keys()} == set(NEW)
    assert all(after[name] == content for name, content in before.items())
