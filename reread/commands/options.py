"""Options that several commands have, with their completion, and how commands print.

Every command imports this module, so it imports no other room before it is needed.
"""

import ast
import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from reread.storage.errors import refuse_unknown
from reread.storage.files import read_json
from reread.storage.registry import Registry

if TYPE_CHECKING:
    import reread.planning.experiment
    from reread.planning.plan import Plan


def completion(names: Callable[[typer.Context], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Complete by the names that begin as the word does; what cannot be read completes to nothing."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception):
            return [name for name in names(context) if name.startswith(incomplete)]
        return []

    return complete


def experiment_names(_: typer.Context) -> list[str]:
    """The names of the experiments."""
    from reread.planning.experiment import experiments

    return experiments()


def run_keys(_: typer.Context) -> list[str]:
    """The keys of the runs in runs/."""
    from reread.planning.runs import all_runs

    return [run.key for run in all_runs()]


def experiment_of(context: typer.Context) -> "reread.planning.experiment.Experiment":
    """The experiment that the command line names."""
    from reread.planning.experiment import load_experiment

    return load_experiment(context.params.get("experiment") or "default")


def variants_of(context: typer.Context) -> list[str]:
    """The names of the experiment's variants; the name of one with a grid stands for all its trials."""
    experiment = experiment_of(context)
    return [*experiment.trials, *experiment.variants]


EXPERIMENTS = completion(experiment_names)
VARIANTS = completion(variants_of)
DATA = completion(lambda context: experiment_of(context).data_sets)
RUNS = completion(run_keys)

Experiment = Annotated[
    str, typer.Option("--experiment", "-e", metavar="NAME", help="A file of experiments/.", autocompletion=EXPERIMENTS)
]
Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", "-v", metavar="NAME", help="Only this variant; repeatable.", autocompletion=VARIANTS),
]
Seeds = Annotated[list[int] | None, typer.Option("--seed", "-s", metavar="SEED", help="Only this seed; repeatable.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, as training.learning_rate=0.02; repeatable."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Ignore the cache: make everything again.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Fail where another process trains a run; default: wait.")]
On = Annotated[
    str | None,
    typer.Option("--on", metavar="EXECUTOR", help="Where to run: local or slurm; default: REREAD_EXECUTOR."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
RunKey = Annotated[str, typer.Argument(metavar="RUN", help="A run's key or its beginning.", autocompletion=RUNS)]


def plan_of(
    experiment: str,
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    on: str | None = None,
) -> "Plan":
    """Resolve and check an experiment at the entrance, before a server is started for it.

    What its files alone show to be wrong is refused first, before slow imports. ``on`` replaces the environment's
    executor.
    """
    from reread.planning.entrance import read_experiment
    from reread.planning.environment import EXECUTORS, read_environment

    refuse_unknown([on] if on else [], EXECUTORS, "--on")
    read_experiment(experiment, variants or None, seeds or None, overrides or ())
    from reread.planning.resolve import make_plan

    environment = read_environment()
    if on:
        environment = environment.model_copy(update={"executor": on})
    return make_plan(experiment, variants or None, seeds or None, overrides or (), environment=environment)


def first_line(registry: Registry, name: str) -> str:
    """Return the first line of a member's docstring; the file is parsed and not imported."""
    text = ast.get_docstring(ast.parse((registry.folder / f"{name}.py").read_bytes()))
    return (text or "").partition("\n")[0]


def progress(as_json: bool) -> contextlib.AbstractContextManager[object]:
    """Print progress inside the block to stderr if ``as_json``: stdout is for the JSON alone."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def results_of(report: Path) -> dict[str, Any]:
    """Return what a report's folder has for a program: its path, its metrics, verdicts and warnings."""
    judged = read_json(report / "verdicts.json")
    content = {"verdicts": judged["verdicts"], "warnings": judged.get("warnings", [])}
    return {"report": str(report), "metrics": read_json(report / "metrics.json"), **content}


def print_results(report: Path) -> None:
    """Print the tables and verdicts of a report and, of a tuning, its choices as an experiment has them."""
    from reread.evaluation.terminal import terminal_table
    from reread.planning.tuning import chosen_lines

    results = results_of(report)
    times, warnings = read_json(report / "latency.json"), results["warnings"]
    print_table(terminal_table(results["metrics"], results["verdicts"], times, warnings))
    if lines := chosen_lines(report):
        print("To train with these, write them under `variants` of the experiment that is tuned:", *lines, sep="\n  ")


def print_table(table: RenderableType) -> None:
    """Print a table: as wide as the terminal, or, where stdout is none, as wide as its cells and without padding."""
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    text = io.StringIO()
    Console(file=text, width=10_000, color_system=None, highlight=False).print(table)
    for line in text.getvalue().splitlines():
        print(line.rstrip())
