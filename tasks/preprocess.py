"""Prepare the arrays of one data set as an experiment wants them, or find them prepared.

python -m tasks.preprocess --data docstrings [--experiment default]
"""

import argparse

from planning.experiment import load_experiment
from planning.folders import prepared_root
from preprocessing.prepare import prepare, summary
from storage.errors import command, refuse_unknown
from tasks.progress import say
from tasks.step import publish_results, step


@step(task_run_name="preprocess-{data}")
def preprocess(experiment: str, data: str, fresh: bool = False) -> str:
    """Prepare data set ``data`` with the settings of ``experiment``; return its folder in prepared/."""
    settings = load_experiment(experiment).preprocessing
    refuse_unknown([data], settings, f"the data sets of experiment '{experiment}'")
    directory = prepare(data, settings[data], prepared_root=prepared_root(), fresh=fresh)
    about = summary(directory)
    rows = ", ".join(f"{stop - start} {split}" for split, (start, stop) in about["splits"].items())
    say(f"{data}: {rows} rows in {directory}")
    return str(directory)


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.preprocess", description="Prepare the arrays of a data set.")
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    directory = preprocess.fn(arguments.experiment, arguments.data)
    publish_results(f"preprocess/{arguments.data}", {"prepared.json": summary(directory)})


if __name__ == "__main__":
    main()
