"""Run an experiment end to end.

python -m commands.run [--experiment default] [--variants han ...] [--seeds 0 1 ...] [--fresh]
"""

import time
from pathlib import Path

from commands.prefect_session import prefect_session
from commands.selection import read_selection
from evaluation.terminal import terminal_table
from flows.pipeline import pipeline
from storage.errors import command
from storage.files import read_json
from tasks.progress import BOARD


@command
def main() -> None:
    arguments = read_selection("run", "Run an experiment end to end.", trains=True)
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
