"""Settings of training, and the job file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.settings import OneOf, Range, Tagged, from_json, tagged
from reread.training.schedules import Schedule


@dataclass(frozen=True)
class Settings:
    """Settings of training. Epochs are passes over the training split; batch_size counts rows.

    optimizer, schedule, objective: a member of reread/training/optimisers, reread/training/schedules and
    models/objectives, with its own settings.
    augmentation: members of reread/batches/augmentations, applied in order to training images.
    Training stops when neither validation loss nor score has improved for ``patience`` epochs, or after max_epochs.
    max_grad_norm: the gradient's largest norm, beyond which it is scaled down; 0: none.
    ema_decay: of the moving average of the weights, which is then validated and kept (reread/training/average.py); 0:
    off.
    lookahead_decay: the share of slow weights that training returns to (reread/training/lookahead.py); 0: off.
    adversarial_epsilon: norm per document of the perturbation of word vectors at which a second loss is added
    (reread/training/adversarial.py); 0: off.
    amp: the precision of the forward pass: exact ``fp32``, ``tf32``, ``bf16``, or ``fp16`` with a scaled loss. ``auto``
    is bf16 where the GPU has it, else fp16, and off on the CPU; ``off`` is float32 with convolutions in tf32.
    amp_validation: validate in the half precision of training as well, which takes less time on a GPU.
    deterministic: run repeatable kernels alone. cuda_graphs: capture a step on a GPU once and replay it.
    strict_kernels: refuse to train on a GPU where the compiled kernels cannot run.
    """

    optimizer: Annotated[Tagged, OneOf("reread.training.optimisers")] = tagged("adamw")
    learning_rate: Annotated[float, Range(1e-8, 100)] = 0.01
    schedule: Annotated[Tagged, OneOf("reread.training.schedules")] = tagged("cosine")
    objective: Annotated[Tagged, OneOf("models.objectives")] = tagged("classification")
    augmentation: tuple[Annotated[Tagged, OneOf("reread.batches.augmentations")], ...] = ()
    batch_size: Annotated[int, Range(1, 65536)] = 64
    max_epochs: Annotated[int, Range(1, 100_000)] = 30
    patience: Annotated[int, Range(1, 100_000)] = 4
    max_grad_norm: Annotated[float, Range(0, 1e6)] = 1.0
    ema_decay: Annotated[float, Range(0, 0.99999)] = 0.0
    lookahead_decay: Annotated[float, Range(0, 0.99999)] = 0.0
    adversarial_epsilon: Annotated[float, Range(0, 100)] = 0.0
    amp: Literal["auto", "off", "fp32", "tf32", "bf16", "fp16"] = "auto"
    amp_validation: bool = False
    threads: Annotated[int, Range(1, 1024)] = 1
    deterministic: bool = True
    cuda_graphs: bool = True
    strict_kernels: bool = False

    def __post_init__(self) -> None:
        warmup = Schedule(self.schedule, self.learning_rate, self.max_epochs).warmup_epochs
        if warmup >= self.max_epochs:
            raise InputError(
                f"schedule.warmup_epochs is {warmup:g} and max_epochs {self.max_epochs}: warm up for fewer"
            )


@dataclass(frozen=True)
class TrainingJob:
    """The part of a job file (reread/storage/job.py) that training needs, its paths relative to the current folder."""

    run_key: str
    variant: str
    model: str
    seed: int
    network: Mapping[str, Any]
    training: Settings
    prepared: Path
    run_directory: Path
    runs_per_gpu: int = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read JOB.json. Entries that training does not need (data, experiment) are ignored."""
        given = read_json(path)
        if not isinstance(given, dict):
            raise InputError(f"{path} must hold one JSON object, the job")
        kinds = {"network": dict, "training": dict, "seed": int}
        for name in [field for field in cls.__dataclass_fields__ if field != "runs_per_gpu"]:
            if not isinstance(given.get(name), kinds.get(name, str)):
                kind = {dict: "an object", int: "a whole number", str: "text"}[kinds.get(name, str)]
                raise InputError(f"{path}: '{name}' must be {kind}, it is {given.get(name)!r}")
        if not 0 <= given["seed"] < 2**63:
            raise InputError(f"{path}: seed is {given['seed']}: give a whole number from 0")
        return cls(
            **{name: given[name] for name in ("run_key", "variant", "model", "seed", "network")},
            training=_training(given["training"], path),
            prepared=Path(given["prepared"]),
            run_directory=Path(given["run_directory"]),
            runs_per_gpu=given.get("runs_per_gpu", 1),
        )


def _training(values: Mapping[str, Any], path: Path) -> Settings:
    """Return the settings of a job; InputError for a name or a value that cannot be."""
    try:
        return from_json(Settings, values)
    except InputError as error:
        raise InputError(f"{path}, training: {error}") from None
