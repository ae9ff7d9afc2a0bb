"""Flow: an experiment from raw data to verdicts. What `make run` and the deployments call.

python -m flows.pipeline [--experiment default] [--variants han ...] [--seeds 0 1 ...] [--fresh]
"""

import time
from pathlib import Path

from prefect import flow

from evaluation.terminal import terminal_table
from flows.evaluate import evaluate
from flows.ingest import ingest
from flows.selection import read_selection
from flows.train import train
from storage.errors import command
from storage.files import read_json
from tasks.jobs import check
from tasks.parameters import load_experiment
from tasks.prefect_session import prefect_session
from tasks.progress import BOARD


@flow(name="pipeline", log_prints=True)
def pipeline(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    fresh: bool = False,
) -> str:
    """Ingest, preprocess, train and evaluate ``experiment``; return the folder of its report.

    ``variants`` and ``seeds`` select among the experiment's. Finished runs are taken up unless ``fresh``.
    """
    chosen = load_experiment(experiment).select(variants, seeds)
    check(chosen)
    ingest(experiment, sorted(chosen.preprocessing))
    train(experiment, variants, seeds, fresh)
    return evaluate(experiment, variants, seeds)


@command
def main() -> None:
    arguments = read_selection("pipeline", "Run an experiment end to end.", trains=True)
    start = time.monotonic()
    with prefect_session():
        report = Path(pipeline(arguments.experiment, arguments.variants, arguments.seeds, arguments.fresh))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    BOARD.console.print(
        terminal_table(read_json(report / "metrics.json"), read_json(report / "verdicts.json")["verdicts"])
    )
    # dvc.yaml has the stages of the default experiment alone.
    taken_up = ""
    if arguments.experiment == "default":
        taken_up = "\n       make repro   DVC takes up the finished runs, and retrains what you change in params.yaml"
    BOARD.console.print(
        f"\n{minutes} min {seconds} s. Report: {report / 'report.html'}\n"
        f"Next:  make ui      MLflow and Prefect in the browser, runs to compare{taken_up}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
