"""Train variants of an experiment.

python -m commands.train [--experiment default] [--variants han ...] [--seeds 0 1 ...]
"""

from commands.prefect_session import prefect_session
from commands.selection import read_selection
from flows.train import train
from planning.experiment import load_experiment
from preprocessing.manifest import Manifest
from storage.errors import command


@command
def main() -> None:
    arguments = read_selection("train", "Train variants of an experiment.", trains=True)
    # Training fetches no data, as the pipeline does: what is missing is said before a server is started.
    manifest = Manifest.load()
    for data in load_experiment(arguments.experiment).select(arguments.variants, arguments.seeds).preprocessing:
        manifest.entry(data)
    with prefect_session():
        train(arguments.experiment, arguments.variants, arguments.seeds, arguments.fresh)


if __name__ == "__main__":
    main()
