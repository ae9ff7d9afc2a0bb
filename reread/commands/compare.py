"""List the runs, or show what differs between two.

reread compare                        list the runs with their keys
reread compare 3f2a 91c0              what differs between two runs; a key's beginning is enough
reread compare 3f2a 91c0 --all        what is equal, too
reread compare --json
"""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from reread.commands.options import RUNS, AsJson, print_json, print_table
from reread.planning.environment import read_environment
from reread.planning.runs import all_runs, find_run
from reread.planning.space import flat
from reread.preprocessing.settings import FOLD
from reread.storage.errors import InputError
from reread.storage.files import read_json, read_object
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import JOB, RunFolder

DIGEST = re.compile(r"[0-9a-f]{32,}")

LONGEST = 48  # letters of a cell

# Names of a run, which are no difference between two.
NAMES = {"run_key", "variant", "seed"}


@dataclass(frozen=True)
class Row:
    """One name and its value in each run; None where a run has none."""

    name: str
    a: Any
    b: Any

    @property
    def equal(self) -> bool:
        return bool(self.a == self.b)

    @property
    def difference(self) -> float | None:
        """b - a of two numbers, else None."""
        for value in (self.a, self.b):
            if not isinstance(value, int | float) or isinstance(value, bool):
                return None
        difference: float = self.b - self.a
        return difference


def compare(a: RunFolder, b: RunFolder) -> dict[str, list[Row]]:
    """Rows of each section, equal ones too: parameters, data, source, environment, results, time."""
    sections = {
        "parameters": (_parameters(a), _parameters(b)),
        "data": (_data(a), _data(b)),
        "source": _source(a, b),
        "environment": (_environment(a), _environment(b)),
        "results": _results(a, b),
        "time": (a.timing, b.timing),
    }
    return {name: _rows(*values) for name, values in sections.items()}


def same_outcome(sections: Mapping[str, list[Row]]) -> bool:
    """Return whether weights and results are equal to the last digit."""
    return all(row.equal for row in sections["results"])


def _parameters(run: RunFolder) -> dict[str, Any]:
    return {name: run.job.get(name) for name in ("variant", "model", "data", "seed", "network", "training")}


def _data(run: RunFolder) -> dict[str, Any]:
    """Return the run's data: its prepared.json, or the key alone if that file is gone."""
    folder = Path(run.job["prepared"])
    known = {"prepared": folder.name, "arrays": run.job.get("key_parts", {}).get("data")}
    file = folder / DESCRIPTION
    if not file.is_file():
        return {**known, "data version": f"unknown: {folder} is gone"}
    about = read_json(file)
    splits = {name: stop - start for name, (start, stop) in about["splits"].items()}
    return {**known, "data version": about["data_version"], "settings": about["settings"], "rows": splits}


def _source(a: RunFolder, b: RunFolder) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of both sources with their digests: equal sources have equal files, also in other folders."""
    of_a, of_b = (run.job.get("source", {}) for run in (a, b))
    if "digest" in of_a and of_a["digest"] == of_b.get("digest"):
        of_a = of_b
    return of_a.get("files", {}), of_b.get("files", {})


def _environment(run: RunFolder) -> dict[str, Any]:
    return {**run.job.get("machine", {}), **run.environment}


def _results(a: RunFolder, b: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results, and the metrics of the newest evaluation that was made of both in the same way."""
    of_a, of_b = (flat({key: value for key, value in run.result.items() if key not in NAMES}) for run in (a, b))
    evaluations = a.evaluations(), b.evaluations()
    shared = [key for key in evaluations[0] if key in evaluations[1]]
    if shared:
        for results, metrics in zip((of_a, of_b), evaluations, strict=True):
            # Lists (counts per class, bins of confidence) stay in the report.
            numbers = {key: value for key, value in flat(metrics[shared[-1]]).items() if isinstance(value, int | float)}
            results |= {**numbers, **results}
    return of_a, of_b


def _rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    a, b = flat(a), flat(b)
    return [Row(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Two runs, by key or its beginning; none: list them.", autocompletion=RUNS),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what is equal, too.")] = False,
    as_json: AsJson = False,
) -> None:
    if not runs:
        listed = list_of_runs()
        print_json(listed) if as_json else print_table(table_of_runs(listed))
        return
    if len(runs) != 2:
        raise InputError(f"RUN: {len(runs)} {'run is' if len(runs) == 1 else 'runs are'} given: name two, A and B")
    a, b = map(find_trained, runs)
    sections = compare(a, b)
    if as_json:
        print_json(sections_as_json(a, b, sections, everything))
    else:
        print_table(table_of_sections({"A": a, "B": b}, sections, everything))


def find_trained(name: str) -> RunFolder:
    """Return a run as ``find_run`` does; InputError for one of `reread claim`, by its folder or, beside its claim file,
    by its key."""
    refuse_command(Path(name))
    try:
        return find_run(name)
    except InputError:
        from reread.arms import jobs

        for job in Path(jobs.FOLDER, jobs.RUNS).glob(f"*/{JOB}"):
            if job.parent.name.startswith(name):
                refuse_command(job.parent)
        raise


def refuse_command(folder: Path) -> None:
    """Raise InputError for the folder of a run of `reread claim`, which has no network."""
    job = read_object(folder / JOB) if (folder / JOB).is_file() else {}
    if "arm" in job:
        raise InputError(
            f"{folder} is a run of `reread claim` ({job['arm']}, seed {job['seed']}): `reread claim FILE --no-cache` "
            "makes those of its claim file again"
        )


def sections_as_json(a: RunFolder, b: RunFolder, sections: Mapping[str, list[Row]], everything: bool) -> dict[str, Any]:
    return {
        "a": a.key,
        "b": b.key,
        "sections": {
            name: [{**asdict(row), "difference": row.difference} for row in rows if everything or not row.equal]
            for name, rows in sections.items()
        },
    }


def table_of_sections(runs: Mapping[str, RunFolder], sections: Mapping[str, list[Row]], everything: bool) -> Table:
    """One table, so that all sections are aligned; ``runs`` by the title of their column."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for title, run in runs.items():
        finished = "" if run.finished else "\nnot finished"
        about = f"{title}  {run.key}\n{run.job['variant']} seed {run.job['seed']}{finished}"
        table.add_column(about, overflow="fold", min_width=len(f"{title}  {run.key}"))
    table.add_column("\ndifference", justify="right", no_wrap=True)
    for name, rows in sections.items():
        different = sum(not row.equal for row in rows)
        table.add_section()
        table.add_row()
        state = f"{different} differ" if different else "equal"
        table.add_row(Text(name, style="bold"), Text(state, style="yellow" if different else "green"))
        for row in rows:
            if everything or not row.equal:
                difference = "" if row.difference is None or row.equal else f"{row.difference:+.4g}"
                table.add_row(Text(f"  {row.name}"), shown(row.a), shown(row.b), difference)
    return table


def shown(value: Any) -> Text:
    """A value as a person reads it: digests by their first 8 digits."""
    if value is None:
        return Text("–", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.6g}")
    if isinstance(value, str):
        return Text(value[:8] if DIGEST.fullmatch(value) else shorten(value))
    return Text(json.dumps(value, ensure_ascii=False))


def shorten(value: str) -> str:
    """Return at most LONGEST letters of a text; ``--json`` has all."""
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"


def list_of_runs() -> list[dict[str, Any]]:
    """Every run there is: its key, what it is, how far it came; validation and epochs are None until it is finished.

    settings: by address, those in which runs of its experiment and variant differ. damaged: which file is, or None.
    """
    runs = all_runs()
    if not runs:
        raise InputError(f"{read_environment().runs}/ holds no run yet: `make run` trains some")
    listed = sorted(map(row_of, runs), key=place)
    for _, group in itertools.groupby(listed, key=lambda row: place(row)[:3]):
        keep_differing(list(group))
    return listed


def row_of(run: RunFolder) -> dict[str, Any]:
    """Return a run's row of the list, with all its settings; of a damaged one with what can be read."""
    row: dict[str, Any] = {"run_key": run.key, "experiment": "", "variant": "", "seed": None}
    row |= {"validation": None, "epochs": None, "settings": {}, "damaged": None}
    names = ("experiment", "variant", "seed", "fold")
    try:
        row |= {name: run.job[name] for name in names if name in run.job}
        row["settings"] = settings_of(run)
        score = run.result["validation"]["score"] if run.finished else None
        row |= {"validation": score, "epochs": run.result.get("epochs")}
    except InputError as error:
        row["damaged"] = str(error)
    return row


def settings_of(run: RunFolder) -> dict[str, Any]:
    """Return the settings of a run by address; those of preprocessing where its arrays are here."""
    prepared = Path(run.job.get("prepared", "")) / DESCRIPTION
    preprocessing = read_object(prepared).get("settings", {}) if prepared.is_file() else {}
    settings = {name: run.job.get(name) for name in ("model", "data", "network", "training")}
    return flat({**settings, "preprocessing": {name: preprocessing[name] for name in preprocessing if name != FOLD}})


def keep_differing(rows: list[dict[str, Any]]) -> None:
    """Keep of the rows' settings those that are not the same in all of them."""
    every = dict.fromkeys(address for row in rows for address in row["settings"])
    values = {address: {json.dumps(row["settings"].get(address)) for row in rows} for address in every}
    for row in rows:
        row["settings"] = {name: value for name, value in row["settings"].items() if len(values[name]) > 1}


def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the place of a row in the list: by experiment, variant, seed and, of cross-validation, fold; damaged ones
    last."""
    return row["damaged"] is not None, row["experiment"], row["variant"], row["seed"] or 0, row.get("fold", 0)


def table_of_runs(listed: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), title=f"{read_environment().runs}/", title_justify="left")
    settings = ["settings"] if any(run["settings"] for run in listed) else []
    for name in ("run_key", "experiment", "variant", "seed", "validation", "epochs", *settings):
        justify: Literal["left", "right"] = "right" if name in ("seed", "validation", "epochs") else "left"
        # A key that is typed again is not shortened, however narrow the terminal.
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=name == "run_key", overflow="fold")
    for run in listed:
        score = "not finished" if run["validation"] is None else f"{run['validation']:.4f}"
        score = "damaged" if run["damaged"] else score
        seed, epochs = ("" if run[name] is None else str(run[name]) for name in ("seed", "epochs"))
        seed += f", fold {run['fold']}" if "fold" in run else ""
        differing = [words_of(run["settings"])] if settings else []
        table.add_row(run["run_key"], run["experiment"], run["variant"], seed, score, epochs, *differing)
    return table


def words_of(settings: Mapping[str, Any]) -> str:
    """Return settings in one short line, each by its name within its section: ``learning_rate=0.02``."""
    return shorten(", ".join(f"{name.partition('.')[2] or name}={value}" for name, value in settings.items()))
