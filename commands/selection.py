"""The command-line arguments that select among an experiment's variants and seeds, one set for every flow."""

import argparse

from planning.experiment import load_experiment
from planning.jobs import check
from tasks.train import workers


def read_selection(flow: str, description: str, trains: bool) -> argparse.Namespace:
    """Parse --experiment, --variants and --seeds of ``python -m commands.FLOW``; with ``trains`` --fresh as well.

    A wrong name is refused here, before a server is started for it; where something will be trained, a wrong setting
    and a wrong number of workers too.
    """
    parser = argparse.ArgumentParser(prog=f"python -m commands.{flow}", description=description)
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    if trains:
        parser.add_argument("--fresh", action="store_true", help="train anew what is finished already")
    arguments = parser.parse_args()
    chosen = load_experiment(arguments.experiment).select(arguments.variants, arguments.seeds)
    if trains:
        check(chosen)
        workers()
    return arguments
