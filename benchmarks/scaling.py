"""Rows per second of training steps on 1, 2, 4 or 8 GPUs of one machine: ``python -m benchmarks.scaling``.

python -m benchmarks.scaling --processes 1 2                                all cases and ways
python -m benchmarks.scaling densenet han --processes 1 2 4 8 --ways flat   some
python -m benchmarks.scaling --processes 1 2 --amp fp32 --steps 10          losses of one and of two, in float32
python -m benchmarks.scaling --debug --processes 1 2                        tiny networks, also on a CPU

torchrun starts the processes, each with a GPU of its own. A case has a batch per process (``each``) or one batch over
all processes (``all``). Steps are those of reread/training/step.py in CUDA graphs, on drawn images of 32 x 32 pixels or
drawn documents. The ways to sum gradients:

flat             training's own: one float32 buffer, summed after the graph
ddp-MB           DistributedDataParallel, which sums buckets of MB megabytes during the backward pass, in the graph
...-graph        of flat: the sum is in the graph
...-bf16         the sum is of bfloat16
...-static       of ddp: static_graph

Timed, in milliseconds per step, the slowest process of each pass and the median of the passes:

step             the whole step on batches that are on the device already
compute          the same without the sum; its difference from ``step`` is the time of the sum that nothing hides
all_reduce       the sum of all gradients alone, as ``flat`` does it
with_batches     the step and making its batch as training does, augmentation included

``efficiency`` is rows per second over those of as many single processes. ``losses`` are those of the first steps, each
over the whole batch. Batch norm takes the statistics of each process's own rows, unless ``--synchronised-batch-norm``:
only then are losses of several processes those of one. HAN has no batch norm.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import models
from benchmarks.end_to_end import PLAIN, WITHOUT_WARM_UP, drawn_images, drawn_text
from cuda_ext import bench
from cuda_ext.graphs import Graphs
from models.objectives import make_objective
from reread.batches.batches import Batch, Batches
from reread.batches.collation import reads_ragged
from reread.storage.errors import InputError, command, nearest, refuse_unknown
from reread.storage.files import read_json, write_json
from reread.storage.prepared import Prepared
from reread.training.device import acquire_device, configure
from reread.training.loop import seed_epoch
from reread.training.optimisers import make_optimiser
from reread.training.processes import ONE, Processes
from reread.training.rendezvous import joined
from reread.training.settings import Settings
from reread.training.step import Outcome, Step

STEPS, PASSES, WARM_PASSES = 12, 3, 3
# After which the processes of a case are killed: a collective that not all processes call waits forever.
TIMEOUT = 90
LOSSES = 10
# DistributedDataParallel measures itself, on the host, in its first calls.
CALLS_BEFORE_CAPTURE = 12
IMAGES = {
    **PLAIN,
    "learning_rate": 0.1,
    "optimizer": {"name": "sgd"},
    "augmentation": [{"name": "flip"}, {"name": "shift"}, {"name": "cutout"}],
}
WAYS = ("flat", "flat-graph", "flat-bf16", "ddp-25", "ddp-5", "ddp-25-static", "ddp-25-bf16")


@dataclass(frozen=True)
class Case:
    """A network and its batch, per process or over all; ``debug`` is a tiny network."""

    model: str
    network: dict[str, Any]
    training: dict[str, Any]
    batch: int
    per_process: bool
    debug: dict[str, Any]

    def batch_size(self, processes: int) -> int:
        """Return the rows of a batch over all processes."""
        return self.batch * processes if self.per_process else self.batch


DENSENET = Case("densenet", {"depth": 100, "growth_rate": 12}, IMAGES, 512, True, {"depth": 10, "growth_rate": 4})
WRN = Case("wide_resnet", {"depth": 28, "widening": 10}, IMAGES, 256, True, {"depth": 10})
HAN = Case(
    "han",
    {"embedding_dim": 200, "hidden_size": 50, "dropout": 0.0},
    PLAIN,
    256,
    True,
    {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.0},
)
CASES = {
    "densenet": DENSENET,
    "densenet-all": replace(DENSENET, per_process=False),
    "wrn": WRN,
    "wrn-all": replace(WRN, per_process=False),
    "han": HAN,
    "han-all": replace(HAN, per_process=False),
}


@dataclass(frozen=True)
class Way:
    """How gradients are summed; see the head of this file."""

    name: str
    bucket_mb: float | None
    graph: bool
    half: bool
    static: bool

    @classmethod
    def of(cls, name: str) -> "Way":
        """Read ``flat[-graph][-bf16]`` or ``ddp-MB[-static][-bf16]``; InputError for another name."""
        kind, *options = name.split("-")
        bucket = None
        if kind == "ddp" and options and options[0].replace(".", "", 1).isdigit():
            bucket = float(options.pop(0))
        known = {"graph", "bf16"} if kind == "flat" else {"static", "bf16"}
        if kind not in ("flat", "ddp") or (kind == "ddp") != (bucket is not None) or not set(options) <= known:
            raise InputError(f"--ways: no way '{name}': {nearest(name, WAYS)}")
        return cls(name, bucket, "graph" in options, "bf16" in options, "static" in options)


class FlatStep(Step):
    """Training's step, with the sum of gradients in the graph, or in bfloat16, where ``way`` says so.

    ``share``: this process's rows as a share of those of all processes, the same in each step.
    """

    def __init__(self, *parts: Any, way: Way, share: float) -> None:
        super().__init__(*parts)
        self.way, self.share = way, share
        if way.graph:
            self.finishes_apart = False

    def _backward(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        result = super()._backward(inputs, target)
        if self.way.graph:
            self._sum()
        return result

    def _add_up(self, outcome: Outcome, share: float) -> None:
        if not self.way.graph:
            self._sum()
        self.processes.add_up([outcome.loss, outcome.correct], share)

    def _sum(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).mul_(self.share)
        flat = flat.bfloat16() if self.way.half else flat
        torch.distributed.all_reduce(flat)
        pieces = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients, [piece.view_as(gradient) for piece, gradient in zip(pieces, gradients, strict=True)]
        )


class WarmedGraphs(Graphs):
    """Graphs whose function is called some times on their stream before any capture."""

    calls = 0

    def made(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes on the stream of the captures."""
        with self._on_own_stream():
            return make()

    def __call__(self, *inputs: Tensor) -> Any:
        self.calls += 1
        if self.calls <= CALLS_BEFORE_CAPTURE:
            return self.made(lambda: self.function(*inputs))
        return super().__call__(*inputs)


class DistributedStep(Step):
    """The step of a network in DistributedDataParallel, with its collectives in the graph."""

    def __init__(
        self,
        network: nn.Module,
        objective: Any,
        optimiser: torch.optim.Optimizer,
        settings: Settings,
        device: torch.device,
        way: Way,
    ) -> None:
        super().__init__(network, objective, optimiser, settings, device, ONE)
        graphs = WarmedGraphs(self._with_gradients, "this network's step", device) if self._graphs else None
        self._graphs = graphs

        def wrapped() -> DistributedDataParallel:
            with warnings.catch_warnings():
                # The new name of broadcast_buffers is not known to PyTorch 2.11.
                warnings.simplefilter("ignore", FutureWarning)
                parallel = DistributedDataParallel(
                    network, bucket_cap_mb=way.bucket_mb, static_graph=way.static, broadcast_buffers=False
                )
            if way.half:
                parallel.register_comm_hook(None, bf16_compress_hook)
            return parallel

        self.network = graphs.made(wrapped) if graphs else wrapped()


@dataclass
class Subject:
    """A case on this process's device, with the batches of its steps."""

    case: Case
    prepared: Prepared
    settings: Settings
    device: torch.device
    processes: Processes
    synchronised: bool
    debug: bool

    def __post_init__(self) -> None:
        self.ragged = reads_ragged(self.build(), self.device)
        self.made = self._batches()
        self.ready: list[Batch] = list(self.made.epoch(1))

    def _batches(self) -> Batches:
        return Batches(
            self.prepared,
            self.prepared.rows("train"),
            self.device,
            self.settings.batch_size,
            ragged=self.ragged,
            augmentation=self.settings.augmentation,
            rank=self.processes.rank,
            world_size=self.processes.world_size,
        )

    def build(self) -> nn.Module:
        """Build the network, with the same weights in every process and every call."""
        seed_epoch(0, epoch=0)
        settings = self.case.debug if self.debug else self.case.network
        network = models.build(self.case.model, settings, self.prepared.description)
        if self.synchronised and self.processes.several:
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return network.to(self.device).train()

    def step(self, way: Way | None) -> Step:
        """Return a step from the first weights; without a ``way`` nothing is summed."""
        network = self.build()
        rows = self.prepared.rows("train")
        objective = make_objective(self.settings.objective, self.prepared.description, self.prepared.labels[rows])
        parts = (network, objective, make_optimiser(network, self.settings), self.settings, self.device)
        if way is None or not self.processes.several:
            return Step(*parts)
        if way.bucket_mb is None:
            return FlatStep(*parts, self.processes, way=way, share=1 / self.processes.world_size)
        return DistributedStep(*parts, way)

    def pass_over(self, step: Step, batches: Iterable[Batch]) -> list[Tensor]:
        """Train on ``batches`` and return the losses, on the device."""
        return [
            step(batch.inputs, batch.target, self.settings.learning_rate, batch.rows / batch.global_rows).loss
            for batch in batches
        ]

    def losses(self, step: Step) -> list[float]:
        """Train on the first pass and return its first losses over all processes' rows."""
        own = torch.stack(self.pass_over(step, self.ready)[:LOSSES]).tolist()
        gathered = self.processes.gather([own, [batch.rows for batch in self.ready[:LOSSES]]])
        if isinstance(step, FlatStep):  # it has summed them
            return own
        return [
            sum(losses[place] * rows[place] for losses, rows in gathered) / sum(rows[place] for _, rows in gathered)
            for place in range(len(own))
        ]

    def timed(self, run: Callable[[], Any]) -> float:
        """Return milliseconds per step of ``run``, a pass: the slowest process's, the median of the passes."""
        for _ in range(1 if self.debug else WARM_PASSES):
            run()
        passes: list[float] = []
        for _ in range(1 if self.debug else PASSES):
            self.wait()
            start = time.perf_counter()
            run()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            passes.append(max(self.processes.gather(time.perf_counter() - start)))
        return statistics.median(passes) / len(self.ready) * 1e3

    def wait(self) -> None:
        """Wait for the device, then for the other processes."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.processes.gather(None)

    def measure(self, ways: Sequence[Way]) -> Iterator[dict[str, Any]]:
        """Yield one row per way; of one process, one row."""
        compute, all_reduce = self.parts()
        gc.collect()
        for way in ways if self.processes.several else [Way.of("flat")]:
            yield self.row(way, compute, all_reduce)
            # A graph that is destroyed while another one is captured ends that capture.
            gc.collect()

    def row(self, way: Way, compute: float, all_reduce: float) -> dict[str, Any]:
        """Measure one way; compute and all_reduce: milliseconds of ``parts``."""
        step = self.step(way)
        losses = self.losses(step)
        seconds = self.timed(lambda: self.pass_over(step, self.ready))
        epochs = iter(range(2, 2 + WARM_PASSES + PASSES))
        with_batches = self.timed(lambda: self.pass_over(step, self.made.epoch(next(epochs))))
        return {
            "way": way.name if self.processes.several else "none",
            "step": seconds,
            "compute": compute,
            "not_hidden": seconds - compute,
            "all_reduce": all_reduce,
            "with_batches": with_batches,
            "rows_per_second": self.settings.batch_size / seconds * 1e3,
            "losses": losses,
            "captured": not (step._graphs is None or step._graphs.failed),
        }

    def parts(self) -> tuple[float, float]:
        """Return the milliseconds of a step without the sum, and those of the sum alone."""
        alone = self.step(None)
        compute = self.timed(lambda: self.pass_over(alone, self.ready))
        return compute, self.timed(lambda: self.add_up_gradients(alone)) if self.processes.several else 0.0

    def add_up_gradients(self, step: Step) -> None:
        """Sum the gradients once per batch, as training does."""
        gradients = [torch.zeros_like(parameter) for parameter in step.parameters]
        for _ in self.ready:
            self.processes.add_up(gradients, 1.0)


def work(options: argparse.Namespace) -> None:
    """Measure a case in one of torchrun's processes; rank 0 prints rows and writes them so far to ``--worker``."""
    processes = Processes.of_environment()
    # Steps and their graphs are cycles: they are collected between ways, and never during a capture.
    gc.disable()
    with joined(processes), acquire_device(processes) as device:
        if device.type == "cuda":
            environment = bench.environment() | {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        else:
            environment = {"gpu": None, "torch": torch.__version__, "python": platform.python_version()}
        if processes.several:
            # The communicator is made by its first use, which no graph may hold.
            torch.distributed.all_reduce(torch.zeros(1, device=device))
        (name,) = options.cases
        case = replace(CASES[name], batch=8) if options.debug else CASES[name]
        settings = Settings(
            **{**case.training, "amp": options.amp, "schedule": WITHOUT_WARM_UP}
            | {"batch_size": case.batch_size(processes.world_size)}
        )
        configure(settings)
        draw = drawn_text if case.model == "han" else drawn_images
        prepared = draw((options.steps * settings.batch_size, 1))
        subject = Subject(case, prepared, settings, device, processes, options.synchronised_batch_norm, options.debug)
        rows: list[dict[str, Any]] = []
        for row in subject.measure([Way.of(way) for way in options.ways]):
            rows.append({"case": name, "processes": processes.world_size, "batch": settings.batch_size, **row})
            if processes.main:
                write_json(options.worker, {"environment": environment, "rows": rows})
                print(line(with_efficiency(rows)[-1]), flush=True)


def with_efficiency(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with ``efficiency`` and ``loss_difference``, the largest of one process's losses.

    Both are None where the case was not measured with one process, and the difference where batches are not the same.
    """
    singles = {row["case"]: row for row in rows if row["processes"] == 1}
    compared = []
    for row in rows:
        single = singles.get(row["case"])
        efficiency = difference = None
        if single:
            efficiency = row["rows_per_second"] / single["rows_per_second"] / row["processes"]
            if single["batch"] == row["batch"]:
                pairs = zip(row["losses"], single["losses"], strict=True)
                difference = max(abs(a - b) / abs(b) for a, b in pairs)
        compared.append({**row, "efficiency": efficiency, "loss_difference": difference})
    return compared


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table; milliseconds per step."""
    return "\n".join([HEAD, *map(line, rows)])


HEAD = (
    "| case | processes | batch | way | rows/s | efficiency | step | compute | not hidden | all-reduce | with batches "
    f"| losses differ by | graph |\n|{'---|' * 13}"
)


def line(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    efficiency = "" if row["efficiency"] is None else f"{row['efficiency']:.1%}"
    difference = "" if row["loss_difference"] is None else f"{row['loss_difference']:.1e}"
    parts = (f"{row[part]:.3f}" for part in ("step", "compute", "not_hidden", "all_reduce", "with_batches"))
    cells = [row["case"], row["processes"], row["batch"], row["way"], f"{row['rows_per_second']:,.0f}", efficiency]
    cells += [*parts, difference, "yes" if row["captured"] else "no"]
    return f"| {' | '.join(map(str, cells))} |"


def launch(count: int, case: str, arguments: list[str], timeout: float) -> dict[str, Any] | None:
    """Measure a case with ``count`` processes under torchrun; return what they measured until their end or timeout."""
    # As PyTorch's notes on CUDA graphs ask for collectives in a graph: no thread looks at their events.
    environment = {**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        worker = ["-m", "benchmarks.scaling", case, *arguments, "--worker", str(results)]
        process = subprocess.Popen([sys.executable, *torchrun, *worker], env=environment)
        try:
            ended = f"ended with exit code {code}" if (code := process.wait(timeout)) else ""
        except subprocess.TimeoutExpired:
            ended = f"were killed after {timeout:g} seconds"
        finally:
            end(process)
        if ended:
            print(f"warning: {count} processes of {case} {ended}: further ways are missing", file=sys.stderr)
        return read_json(results) if results.is_file() else None


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill torchrun and its workers: where they wait for each other in a collective, they ignore SIGTERM."""
    for pid in [*descendants(process.pid), process.pid] if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(parent: int) -> list[int]:
    """Return the ids of the processes that a process has started, and of those that these have started (Linux)."""
    ids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                ids += [*descendants(int(entry.name)), int(entry.name)]
    return ids


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which: {', '.join(CASES)} (default: all)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="how many, in turn (%(default)s)")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="to sum gradients (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="batches of a pass (%(default)s)")
    parser.add_argument("--amp", default="auto", help="precision, as training.amp (%(default)s)")
    parser.add_argument("--synchronised-batch-norm", action="store_true", help="take statistics over all processes")
    parser.add_argument("--debug", action="store_true", help="tiny networks and batches")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of a case (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    refuse_unknown(options.cases, CASES, "the arguments")
    for way in options.ways:
        Way.of(way)
    if options.worker:
        work(options)
        return
    if not torch.cuda.is_available() and not options.debug:
        raise InputError(
            "the benchmark times steps on NVIDIA GPUs, and PyTorch sees none: see `nvidia-smi`, or --debug"
        )
    passed_on = ["--ways", *options.ways, "--steps", str(options.steps), "--amp", options.amp]
    passed_on += [flag for flag in ("--synchronised-batch-norm", "--debug") if flag in arguments]
    measured: dict[str, Any] = {"arguments": arguments, "environment": None, "rows": []}
    print(HEAD, flush=True)
    for case in options.cases or CASES:
        for count in options.processes:
            report = launch(count, case, passed_on, options.timeout)
            if report:
                measured["environment"] = report["environment"]
                measured["rows"] = with_efficiency([*measured["rows"], *report["rows"]])
            if options.json:
                write_json(options.json, measured)
    print(f"\n{table(measured['rows'])}\n{json.dumps(measured)}")


if __name__ == "__main__":
    command(main)()
