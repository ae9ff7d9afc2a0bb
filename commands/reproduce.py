"""Train a finished run again and say whether it comes out the same, and if not, what is another today.

python -m commands.reproduce RUN_KEY     a run key or its beginning

Exit code 0: equal weights and results; 1: they differ; 2: it cannot be tried. The original stays as it is; the
second run is removed when it is equal and kept in runs/.reproduced/ when it is not.
"""

import argparse

from rich.console import Console

from commands.compare import as_table
from commands.comparison import Row, compare, same_outcome
from commands.reproduction import forget, reproduce
from planning.runs import find_run
from storage.errors import command
from tasks.progress import RunProgress
from training.launcher import TrainingFailed

MADE_OF = ("source", "data", "environment")
# Of the environment: what weights do not depend on.
NO_PART = {"host", "git_commit", "git_dirty", "driver", "python", "numpy"}


@command
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m commands.reproduce", description="Train a finished run again.")
    parser.add_argument("run", metavar="RUN_KEY")
    run = find_run(parser.parse_args().run)
    console = Console(highlight=False, soft_wrap=True)
    progress = RunProgress(run.job)
    name = f"{run.job['variant']} seed {run.job['seed']}"
    try:
        again = reproduce(run, progress)
    except TrainingFailed as error:
        progress.finish(f"{name}: failed")
        console.print(f"not reproduced: {error}", markup=False)
        return 1
    progress.finish(f"{name}: trained again")
    sections = compare(run, again)
    changed = [describe(section, sections[section]) for section in MADE_OF]
    if same_outcome(sections):
        console.print(f"[bold green]equal[/]: weights {run.result['weights_sha256'][:12]} and all results of {run.key}")
        forget(again)
    else:
        Console(highlight=False).print(as_table({"first": run, "again": again}, sections, everything=False))
        console.print(f"\n[bold red]different[/]: the second run is kept in {again.directory}")
    if any(changed):
        console.print("What is another today: " + "; ".join(filter(None, changed)), markup=False)
    elif not same_outcome(sections):
        console.print("Source, data and machine are the same as then: the training itself is not deterministic here.")
    return 0 if same_outcome(sections) else 1


def describe(section: str, rows: list[Row]) -> str:
    """Half a sentence that names what differs in a section; nothing where nothing does."""
    names = [row.name for row in rows if not row.equal and row.name not in NO_PART]
    return f"{section} ({', '.join(names)})" if names else ""


if __name__ == "__main__":
    main()
