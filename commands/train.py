"""Train variants of an experiment.

python -m commands.train [--experiment default] [--variants han ...] [--seeds 0 1 ...]
"""

from commands.prefect_session import prefect_session
from commands.selection import read_selection
from flows.train import train
from storage.errors import command


@command
def main() -> None:
    arguments, plan = read_selection("train", "Train variants of an experiment.", trains=True)
    # Training fetches no data, as the pipeline does: what is missing is refused before a server is started.
    plan.preparations()
    with prefect_session():
        train(arguments.experiment, plan=plan.to_json(), fresh=arguments.fresh)


if __name__ == "__main__":
    main()
