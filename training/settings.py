"""What a training run can be told, and what a job file must say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from storage.checked import Between, Checked
from storage.errors import InputError
from storage.files import read_json


@dataclass(frozen=True)
class Settings(Checked):
    """Settings of training. Epochs are passes over the training split, batch_size counts rows.

    Stops when neither validation loss nor score has improved for ``patience`` epochs, or after maximum_epochs.
    word_vector_rate is the learning rate of word vectors as a share of the others'; at 0 they stay as they began.
    weight_decay applies to matrices alone; momentum to sgd alone. clip_norm 0 turns clipping off. amp ``auto`` is
    bfloat16 where the GPU has it, else float16, and off on the CPU. deterministic asks for repeatable kernels.
    cuda_graphs captures a step on a GPU once and replays it; a network that cannot be captured is called.
    average_decay above 0 validates and keeps the moving average of the weights (training/average.py). adversarial above
    0 adds the loss at word vectors perturbed by that norm a document (training/adversarial.py). strict_kernels refuses
    to train on a GPU where the compiled kernels cannot run.
    """

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Between(1e-8, 100)] = 0.01
    word_vector_rate: Annotated[float, Between(0, 1)] = 1.0
    weight_decay: Annotated[float, Between(0, 10)] = 0.1
    momentum: Annotated[float, Between(0, 0.9999)] = 0.9
    batch_size: Annotated[int, Between(1, 65536)] = 64
    maximum_epochs: Annotated[int, Between(1, 100_000)] = 30
    patience: Annotated[int, Between(1, 100_000)] = 4
    warmup_epochs: Annotated[float, Between(0, 1000)] = 1.0
    clip_norm: Annotated[float, Between(0, 1e6)] = 1.0
    label_smoothing: Annotated[float, Between(0, 0.99)] = 0.1
    average_decay: Annotated[float, Between(0, 0.99999)] = 0.0
    adversarial: Annotated[float, Between(0, 100)] = 0.0
    amp: Literal["auto", "off", "bfloat16", "float16"] = "auto"
    threads: Annotated[int, Between(1, 1024)] = 1
    deterministic: bool = True
    cuda_graphs: bool = True
    strict_kernels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs >= self.maximum_epochs:
            raise InputError(
                f"warmup_epochs is {self.warmup_epochs:g} and maximum_epochs {self.maximum_epochs}: warm up for fewer"
            )


@dataclass(frozen=True)
class Job:
    """One network, one data set, one seed: the job file, its paths relative to the current folder."""

    run_key: str
    variant: str
    model: str
    seed: int
    network: Mapping[str, Any]
    training: Settings
    prepared: Path
    run_directory: Path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read JOB.json. Entries that training does not need (data, experiment) are passed over."""
        given = read_json(path)
        if not isinstance(given, dict):
            raise InputError(f"{path} must hold one JSON object, the job")
        kinds = {"network": dict, "training": dict, "seed": int}
        for name in cls.__dataclass_fields__:
            if not isinstance(given.get(name), kinds.get(name, str)):
                kind = {dict: "an object", int: "a whole number", str: "text"}[kinds.get(name, str)]
                raise InputError(f"{path}: '{name}' must be there and be {kind}, it is {given.get(name)!r}")
        if not 0 <= given["seed"] < 2**63:
            raise InputError(f"{path}: seed is {given['seed']}: give a whole number from 0")
        return cls(
            **{name: given[name] for name in ("run_key", "variant", "model", "seed", "network")},
            training=Settings.read(given["training"], f"{path}, training"),
            prepared=Path(given["prepared"]),
            run_directory=Path(given["run_directory"]),
        )
