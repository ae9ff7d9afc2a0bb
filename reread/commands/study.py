"""Run a study, or list the studies.

reread study                                       list them
reread study gradients                             needs no run
reread study gates --experiment imdb               the networks of variant han, or of another by --variant
reread study deletion 3f2a 91c0                    the networks of these runs; a key's beginning is enough
reread study quantiles --experiment quantiles-imdb
reread study deletion --option documents=200       a setting of the study
reread study gradients --debug --to /tmp/studies   in seconds, too small to prove anything

Writes results.json, tables and a figure to results/studies/NAME, NAME/DATA or NAME/EXPERIMENT. A study trains nothing:
train and evaluate its experiment first, by `reread run`.
"""

import contextlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reread.commands.options import (
    EXPERIMENTS,
    RUNS,
    AsJson,
    Overrides,
    Seeds,
    completion,
    first_line,
    plan_of,
    print_json,
)
from reread.planning.runs import find_run
from reread.planning.schema import parse_yaml
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.studies import REGISTRY

if TYPE_CHECKING:
    from reread.studies.load_runs import EvaluatedExperiment, TrainedNetworks

FOLDER = Path("results", "studies")
NAMES = completion(lambda _: REGISTRY.available())


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="A study; none: list them.", autocompletion=NAMES)
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", help="Runs by key or its beginning, in place of --experiment.", autocompletion=RUNS
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", "-e", metavar="NAME", help="Its runs are read.", autocompletion=EXPERIMENTS),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", "-v", metavar="NAME", help="Its networks are read.")
    ] = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="A setting of the study; repeatable.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Run in seconds, too small to prove anything.")] = False,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Write to FOLDER/NAME, or NAME/DATA.")] = FOLDER,
    as_json: AsJson = False,
) -> None:
    if name is None:
        listed = {study: first_line(REGISTRY, study) for study in REGISTRY.available()}
        print_json(listed) if as_json else print(*(f"{name:<12} {line}" for name, line in listed.items()), sep="\n")
        return
    module = REGISTRY.module(name)
    settings = settings_of(module, option or [], debug)
    given = {"--experiment": experiment, "--variant": variant, "--seed": seeds, "--set": overrides}
    chosen = [flag for flag, value in given.items() if value]
    source = source_of(name, module, runs or [], experiment, variant, seeds, overrides, chosen)

    import torch

    from reread.runtime.determinism import set_determinism
    from reread.runtime.gpu_lease import acquire_gpu
    from reread.studies import study_io

    place = study_io.destination(to, name, evidence_of(module, source))
    torch.set_num_threads(1)
    # Only a study of networks computes with them.
    with (
        acquire_gpu() if module.VARIANT else contextlib.nullcontext(torch.device("cpu")) as device,
        study_io.reading(name, getattr(settings, "split", getattr(module, "SPLIT", None)), settings, source),
    ):
        set_determinism(True)
        findings = module.study(settings, source, device)
    provenance = study_io.provenance(source.keys() if source else None)
    results = study_io.publish(place, findings, provenance, module.draw_figure)
    print_json(results) if as_json else print(study_io.summary(results, place))


def evidence_of(module: ModuleType, source: "TrainedNetworks | EvaluatedExperiment | None") -> str | None:
    """Return what a study's evidence is of: an experiment, a data set, or None where it reads no run."""
    if source is None:
        return None
    return source.keys()["experiment"] if getattr(module, "PER_EXPERIMENT", False) else source.data


def settings_of(module: ModuleType, options: list[str], debug: bool) -> Any:
    """Return the study's settings with ``options``, NAME=VALUE each, over its defaults or those of ``debug``."""
    base = module.DEBUG if debug else module.Settings()
    values = {}
    for option in options:
        setting, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"--option '{option}' is not NAME=VALUE: write for example documents=200")
        values[setting.strip()] = parse_yaml(value)
    return read(type(base), {**vars(base), **values}, "--option")


def source_of(
    name: str,
    module: ModuleType,
    runs: list[str],
    experiment: str | None,
    variant: str | None,
    seeds: list[int] | None,
    overrides: list[str] | None,
    chosen: list[str],
) -> "TrainedNetworks | EvaluatedExperiment | None":
    """Return what the study reads. InputError where an option does not apply to it, or a run is not finished."""
    if module.EXPERIMENT is None:
        if runs or chosen:
            raise InputError(f"study {name} reads no run: leave out {(chosen or ['RUN'])[0]}")
        return None

    from reread.studies.load_runs import evaluated_experiment, networks_of_variant, trained_networks

    if module.VARIANT is None:
        refused = ["RUN"] * bool(runs) + [flag for flag in chosen if flag != "--experiment"]
        if refused:
            raise InputError(f"study {name} reads a whole experiment: leave out {refused[0]}")
        return evaluated_experiment(plan_of(experiment or module.EXPERIMENT))
    if runs:
        if chosen:
            raise InputError(f"RUN and {chosen[0]} exclude each other: give one of them")
        return trained_networks([find_run(key) for key in runs])
    return networks_of_variant(plan_of(experiment or module.EXPERIMENT, [variant or module.VARIANT], seeds, overrides))
