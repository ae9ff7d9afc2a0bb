"""The copying task and its trainings: what studies/copying.py measures, part by part.

A part is one cell at one lag: its learning rate is tuned, its seeds are trained and tested. Each is kept when it is
done, under a key of its plan, its source and the kind of machine, so that a study that was stopped goes on, and a
second process that is started beside the first takes up other parts.

Shape legend: N sequences, T steps, A alphabet, K symbols, S seeds, R runs that are trained together, m test sequences.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from models.layers.cells import NAMES, Name, Recurrence
from storage.files import content_key, published_directory, read_json, write_json
from storage.source import source_digests
from studies.evidence import make_once

# Seeds of the sequences that all runs share; those of runs are far below.
VALIDATION, TEST, LAGS = 10**6, 2 * 10**6, 3 * 10**6
FIRST_TUNING_SEED = 1000
# What of a plan says which parts there are, and changes none of them.
OF_THE_WHOLE = ("cells", "lags", "primary_lag")
KEPT = Path(".cache", "studies", "copying")


@dataclass(frozen=True)
class Plan:
    """symbols: to be remembered, of ``alphabet``; steps: of training; rates: what each tuning seed tries.

    primary_lag is the lag that is judged: it, the sizes and the rates were chosen on seeds that are not tested, before
    those that are.
    """

    cells: tuple[Name, ...] = NAMES
    lags: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    primary_lag: int = 100
    symbols: int = 4
    alphabet: int = 8
    units: int = 32
    batch: int = 32
    steps: int = 700
    warmup: int = 50
    clip_norm: float = 1.0
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    tuning_seeds: int = 2
    seeds: int = 10
    validation_sequences: int = 200
    test_sequences: int = 500


DEBUG = Plan(
    cells=("gru", "minimal", "rnn"),
    lags=(1, 3),
    primary_lag=3,
    symbols=2,
    alphabet=3,
    units=4,
    batch=4,
    steps=6,
    warmup=2,
    rates=(0.01, 0.03),
    tuning_seeds=1,
    seeds=3,
    validation_sequences=10,
    test_sequences=20,
)


class Copier(nn.Module):
    """A recurrent layer that is asked for ``symbols`` symbols at the last steps.

    Shape legend: N sequences, T steps, A alphabet, K symbols.
    """

    def __init__(self, plan: Plan, cell: Name) -> None:
        super().__init__()
        self.symbols = plan.symbols
        self.recurrence = Recurrence(plan.alphabet + 2, plan.units, cell)
        self.said = nn.Linear(plan.units, plan.alphabet)

    def forward(self, x: Tensor) -> Tensor:
        """x float [N, T, A + 2] -> logits [N, K, A]."""
        return self.said(self.recurrence(x)[:, -self.symbols :])


def sequences(plan: Plan, generator: torch.Generator, count: int, lag: int) -> tuple[Tensor, Tensor]:
    """``count`` sequences: x float32 [N, K + lag + K, A + 2], and the symbols to say, int64 [N, K].

    A symbol is one of A inputs; input A marks those to be remembered, and input A + 1 asks.
    """
    drawn = torch.randint(plan.alphabet, (count, plan.symbols + lag), generator=generator)
    x = torch.zeros(count, lag + 2 * plan.symbols, plan.alphabet + 2)
    x[:, : plan.symbols + lag, : plan.alphabet] = functional.one_hot(drawn, plan.alphabet)
    x[:, : plan.symbols, plan.alphabet] = 1
    x[:, -plan.symbols :, plan.alphabet + 1] = 1
    return x, drawn[:, : plan.symbols]


@dataclass(frozen=True)
class Run:
    """One training: a cell and lag with this seed and learning rate."""

    seed: int
    rate: float


class Together:
    """Networks of one cell, trained on top of each other: each step is one batched product for all of them.

    Shape legend: R runs.
    """

    def __init__(self, plan: Plan, cell: Name, runs: Sequence[Run], device: torch.device) -> None:
        self.plan, self.runs, self.device = plan, runs, device
        self.networks = [drawn_network(plan, cell, run.seed).to(device) for run in runs]
        self.skipped = [0] * len(runs)
        self._call = vmap(lambda values, x: functional_call(self.networks[0], values, (x,)))

    def logits(self, x: Tensor) -> Tensor:
        """x float [R, N, T, A + 2] -> logits [R, N, K, A]."""
        each = [dict(network.named_parameters()) for network in self.networks]
        return self._call({name: torch.stack([one[name] for one in each]) for name in each[0]}, x.to(self.device))

    def train(self, lag: int) -> None:
        """Train every run on its own sequences; a step whose gradient is not finite is passed over, and counted."""
        plan = self.plan
        groups = [{"params": list(network.parameters()), "lr": 0.0} for network in self.networks]
        optimiser = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        generators = [torch.Generator().manual_seed(run.seed) for run in self.runs]
        lags = torch.rand(plan.steps, generator=torch.Generator().manual_seed(LAGS + lag), dtype=torch.float64)
        for step, share in enumerate(lags.tolist()):
            drawn = [sequences(plan, generator, plan.batch, round(lag**share)) for generator in generators]
            logits = self.logits(torch.stack([x for x, _ in drawn]))
            answers = torch.stack([answer for _, answer in drawn]).to(self.device)
            losses = functional.cross_entropy(logits.flatten(0, 2), answers.flatten(), reduction="none")
            optimiser.zero_grad()
            losses.unflatten(0, (len(self.runs), -1)).mean(dim=1).sum().backward()
            self._clip()
            for group, run in zip(optimiser.param_groups, self.runs, strict=True):
                group["lr"] = run.rate * schedule(step, plan)
            optimiser.step()

    def _clip(self) -> None:
        norms = torch.stack(
            [nn.utils.clip_grad_norm_(network.parameters(), self.plan.clip_norm) for network in self.networks]
        )
        for index, finite in enumerate(norms.isfinite().tolist()):
            if not finite:
                self.skipped[index] += 1
                for parameter in self.networks[index].parameters():
                    parameter.grad = None

    @torch.no_grad()
    def recall(self, seed: int, count: int, lag: int) -> np.ndarray:
        """The share of symbols that each run says right in each of the ``count`` sequences of ``seed``, [R, m]."""
        x, answer = sequences(self.plan, torch.Generator().manual_seed(seed + lag), count, lag)
        right = self.logits(x.expand(len(self.runs), *x.shape)).argmax(dim=-1).cpu() == answer
        return right.double().mean(dim=-1).numpy()


def drawn_network(plan: Plan, cell: Name, seed: int) -> Copier:
    torch.manual_seed(seed)
    return Copier(plan, cell)


def schedule(step: int, plan: Plan) -> float:
    """The share of the learning rate at a step: a linear warm-up, then a cosine to zero."""
    return min(1.0, (step + 1) / plan.warmup) * 0.5 * (1 + math.cos(math.pi * step / plan.steps))


@dataclass(frozen=True)
class Tested:
    """A cell at a lag: the tuning trials as (rate, seed, recall on validation), the rate chosen by them, each seed's
    recall of each test sequence, float64 [S, m], its steps passed over, and its trained network."""

    cell: Name
    lag: int
    trials: list[tuple[float, int, float]]
    rate: float
    recall: np.ndarray
    skipped: list[int]
    networks: list[Copier]


def tuned(plan: Plan, cell: Name, lag: int, device: torch.device) -> list[tuple[float, int, float]]:
    """Recall on validation of every learning rate and tuning seed: (rate, seed, recall)."""
    runs = [Run(FIRST_TUNING_SEED + seed, rate) for rate in plan.rates for seed in range(plan.tuning_seeds)]
    together = Together(plan, cell, runs, device)
    together.train(lag)
    recall = together.recall(VALIDATION, plan.validation_sequences, lag).mean(axis=1)
    return [(run.rate, run.seed, float(found)) for run, found in zip(runs, recall, strict=True)]


def best_rate(trials: Sequence[tuple[float, int, float]]) -> float:
    """The rate of the highest mean recall over tuning seeds; of equal ones the lowest."""
    rates = sorted({rate for rate, _, _ in trials})
    return max(rates, key=lambda rate: np.mean([recall for tried, _, recall in trials if tried == rate]))


def tested(plan: Plan, cell: Name, lag: int, device: torch.device) -> Tested:
    """Tune, then train every seed and read the test sequences."""
    trials = tuned(plan, cell, lag, device)
    rate = best_rate(trials)
    together = Together(plan, cell, [Run(seed, rate) for seed in range(plan.seeds)], device)
    together.train(lag)
    recall = together.recall(TEST, plan.test_sequences, lag)
    networks = [network.cpu() for network in together.networks]
    return Tested(cell, lag, trials, rate, recall, together.skipped, networks)


def all_tested(plan: Plan, device: torch.device, machine: dict[str, str], kept: Path = KEPT) -> list[Tested]:
    """Every cell at every lag: kept ones are read, the others made and kept, those last that another process makes."""
    parts = [(cell, lag) for lag in plan.lags for cell in plan.cells]
    places = {part: kept / part_key(plan, *part, machine) for part in parts}

    def make(part: tuple[Name, int], place: Path) -> None:
        cell, lag = part
        found = tested(plan, cell, lag, device)
        keep(found, place)
        print(f"lag {lag}, {cell}: rate {found.rate:g}, recall {found.recall.mean():.3f}", flush=True)

    make_once(places, make)
    return [read_kept(plan, *part, place) for part, place in places.items()]


def part_key(plan: Plan, cell: Name, lag: int, machine: dict[str, str]) -> str:
    """What a part depends on: its plan, its source, and the kind of machine."""
    own = {name: value for name, value in dataclasses.asdict(plan).items() if name not in OF_THE_WHOLE}
    source = source_digests(["studies.copier"])
    return content_key({"plan": own, "cell": cell, "lag": lag, "machine": machine, "source": source})


def keep(found: Tested, place: Path) -> None:
    with published_directory(place) as folder:
        weights = {
            f"{seed}.{name}": value
            for seed, network in enumerate(found.networks)
            for name, value in network.state_dict().items()
        }
        save_file(weights, folder / "networks.safetensors")
        np.save(folder / "recall.npy", found.recall, allow_pickle=False)
        write_json(folder / "part.json", {"trials": found.trials, "rate": found.rate, "skipped": found.skipped})


def read_kept(plan: Plan, cell: Name, lag: int, place: Path) -> Tested:
    part, weights = read_json(place / "part.json"), load_file(place / "networks.safetensors")
    networks = [Copier(plan, cell) for _ in range(plan.seeds)]
    for seed, network in enumerate(networks):
        network.load_state_dict({name: weights[f"{seed}.{name}"] for name in network.state_dict()})
    trials = [(rate, seed, recall) for rate, seed, recall in part["trials"]]
    recall = np.load(place / "recall.npy", allow_pickle=False)
    return Tested(cell, lag, trials, part["rate"], recall, part["skipped"], networks)
