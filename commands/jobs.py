"""Write jobs to be trained on another machine.

    REREAD_MACHINE=machine.json python -m commands.jobs --experiment imdb [--variants han ...] [--seeds 0 1 ...]

writes runs/KEY/job.json for each run that is not finished and prints the paths, one a line; what else must travel there
stands on stderr.
"""

import argparse
import contextlib
import sys
from pathlib import Path

from planning.experiment import load_experiment
from planning.jobs import check, machine, unfinished
from storage.errors import command
from storage.files import write_json
from tasks.preprocess import preprocess


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m commands.jobs", description="Write the jobs of an experiment that are not trained."
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    arguments = parser.parse_args()
    chosen = load_experiment(arguments.experiment).select(arguments.variants, arguments.seeds)
    machine()
    check(chosen)
    # On stdout stand the paths alone, for `python -m training $(...)`.
    with contextlib.redirect_stdout(sys.stderr):
        prepared = {data: preprocess.fn(chosen.name, data) for data in chosen.preprocessing}
    jobs = list(unfinished(chosen, prepared))
    for job in jobs:
        path = Path(job["run_directory"]) / "job.json"
        write_json(path, job)
        print(path)
    if jobs:
        folders = ", ".join(dict.fromkeys(job["prepared"] for job in jobs))
        print(f"{len(jobs)} jobs; beside them and the source travel: {folders}", file=sys.stderr)
    else:
        print("every run is finished: there is no job to write", file=sys.stderr)


if __name__ == "__main__":
    main()
