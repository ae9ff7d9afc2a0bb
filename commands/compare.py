"""What differs between two runs: parameters, data, source, environment, results.

python -m commands.compare A B [--all] [--json]      A and B: run keys, or their beginnings
python -m commands.compare [--json]                  lists the runs
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commands.comparison import Row, compare
from planning.folders import runs_root
from planning.runs import Run, all_runs, find_run
from storage.errors import InputError, command

DIGEST = re.compile(r"[0-9a-f]{32,}")


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m commands.compare", description="What differs between two runs.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="two run keys or their beginnings; none: list the runs")
    parser.add_argument("--all", action="store_true", help="what is equal, too")
    parser.add_argument("--json", action="store_true", help="on stdout, as JSON")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    if not arguments.runs:
        listed = list_of_runs()
        if arguments.json:
            print_json(listed)
        else:
            console.print(table_of_runs(listed))
        return
    if len(arguments.runs) != 2:
        raise InputError(f"{len(arguments.runs)} runs are given: name two, A and B")
    a, b = map(find_run, arguments.runs)
    sections = compare(a, b)
    if arguments.json:
        print_json(as_json(a, b, sections, arguments.all))
    else:
        console.print(as_table({"A": a, "B": b}, sections, arguments.all))


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def as_json(a: Run, b: Run, sections: Mapping[str, list[Row]], everything: bool) -> dict[str, Any]:
    return {
        "a": a.key,
        "b": b.key,
        "sections": {
            name: [{**asdict(row), "difference": row.difference} for row in rows if everything or not row.equal]
            for name, rows in sections.items()
        },
    }


def as_table(runs: Mapping[str, Run], sections: Mapping[str, list[Row]], everything: bool) -> Table:
    """One table, so that all sections are aligned; ``runs`` by the title of their column."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for title, run in runs.items():
        finished = "" if run.finished else "\nnot finished"
        about = f"{title}  {run.key}\n{run.job['variant']} seed {run.job['seed']}{finished}"
        table.add_column(about, overflow="fold")
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
        return Text(value[:8] if DIGEST.fullmatch(value) else value)
    return Text(json.dumps(value, ensure_ascii=False))


def list_of_runs() -> list[dict[str, Any]]:
    """Every run there is: its key, what it is, how far it came; validation and epochs are None until it is finished."""
    runs = all_runs()
    if not runs:
        raise InputError(f"{runs_root()}/ holds no run yet: `make run` trains some")
    return [
        {
            "run_key": run.key,
            "experiment": run.job.get("experiment", ""),
            "variant": run.job["variant"],
            "seed": run.job["seed"],
            "validation": run.result["validation"]["score"] if run.finished else None,
            "epochs": run.result.get("epochs"),
        }
        for run in sorted(runs, key=lambda run: (run.job.get("experiment", ""), run.job["variant"], run.job["seed"]))
    ]


def table_of_runs(listed: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), title=f"{runs_root()}/", title_justify="left")
    for name in listed[0]:
        justify = "right" if name in ("seed", "validation", "epochs") else "left"
        # What is typed again is not shortened, however narrow the terminal.
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=name == "run_key", overflow="fold")
    for run in listed:
        score = "not finished" if run["validation"] is None else f"{run['validation']:.4f}"
        epochs = "" if run["epochs"] is None else str(run["epochs"])
        table.add_row(run["run_key"], run["experiment"], run["variant"], str(run["seed"]), score, epochs)
    return table


if __name__ == "__main__":
    main()
