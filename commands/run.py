"""Run an experiment from raw data to verdicts.

reread run
reread run --experiment imdb
reread run --experiment tiny --variant han --seed 0 --seed 1
reread run --experiment tiny --set training.learning_rate=0.02 --set network.dropout=0.3

Finished runs are cached; an interrupted one resumes from its last epoch. A selection or an override writes its report
to reports/NAME-part and leaves the experiment's own alone.
"""

import time
from pathlib import Path

from commands.options import (
    AsJson,
    Experiment,
    NoCache,
    Overrides,
    Seeds,
    Variants,
    plan_of,
    print_json,
    print_table,
    progress,
)


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides)
    start = time.monotonic()

    from commands.servers import prefect_session
    from evaluation.terminal import terminal_table
    from flows.pipeline import pipeline
    from storage.files import read_json
    from tasks.progress import say

    with progress(as_json), prefect_session():
        report = Path(pipeline(experiment, plan=plan.to_json(), fresh=no_cache))
    metrics, verdicts = read_json(report / "metrics.json"), read_json(report / "verdicts.json")["verdicts"]
    if as_json:
        print_json({"report": str(report), "metrics": metrics, "verdicts": verdicts})
        return
    print_table(terminal_table(metrics, verdicts))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    say(f"\n{minutes} min {seconds} s. Report: {report / 'report.html'}")
    say("Next:  reread ui      MLflow and Prefect in the browser, runs to compare")
    if plan.name == "default":  # dvc.yaml has the stages of this experiment
        say("       make repro     DVC reuses the finished runs, and retrains what you change in params.yaml")
