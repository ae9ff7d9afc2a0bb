"""Write jobs to train on another machine.

REREAD_MACHINE=machine.json reread jobs --experiment imdb > jobs.txt
reread jobs --experiment imdb --variant han --seed 0
python -m training $(cat jobs.txt)      on that machine, which needs torch, numpy and safetensors

Writes runs/KEY/job.json for each and prints the paths, one per line. What else that machine needs is printed on stderr.
"""

import sys
from pathlib import Path

from commands.options import AsJson, Experiment, Overrides, Seeds, Variants, plan_of, print_json, progress


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides)

    from storage.files import write_json
    from storage.run_folder import JOB
    from tasks.preprocess import preprocess

    # Only the paths go to stdout, for `python -m training $(...)`.
    with progress(as_json=True):
        prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
    jobs = {Path(job["run_directory"]) / JOB: job for job in plan.unfinished(prepared)}
    for path, job in jobs.items():
        write_json(path, job)
    if as_json:
        print_json([str(path) for path in jobs])
    else:
        print(*jobs, sep="\n", end="\n" if jobs else "")
    folders = ", ".join(dict.fromkeys(job["prepared"] for job in jobs.values()))
    summary = f"{len(jobs)} jobs; copy them there with the source and {folders}" if jobs else "every run is finished"
    print(summary, file=sys.stderr)
