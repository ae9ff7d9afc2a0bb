"""Evaluate an experiment:  python -m commands.evaluate [--experiment default]"""

from commands.prefect_session import prefect_session
from commands.selection import read_selection
from flows.evaluate import evaluate
from storage.errors import command


@command
def main() -> None:
    arguments = read_selection("evaluate", "Evaluate an experiment.", trains=False)
    with prefect_session():
        evaluate(arguments.experiment, arguments.variants, arguments.seeds)


if __name__ == "__main__":
    main()
