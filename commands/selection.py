"""The command-line arguments that select among an experiment's variants and seeds, one set for every flow."""

import argparse

from planning.plan import Plan, make_plan


def read_selection(flow: str, description: str, trains: bool) -> tuple[argparse.Namespace, Plan]:
    """Parse --experiment, --variants and --seeds of ``python -m commands.FLOW``; with ``trains`` --fresh as well.

    A wrong name, setting or variable is refused here, before a server is started for it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m commands.{flow}", description=description)
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.SETTING=VALUE", help="override a setting"
    )
    if trains:
        parser.add_argument("--fresh", action="store_true", help="train anew what is finished already")
    arguments = parser.parse_args()
    return arguments, make_plan(arguments.experiment, arguments.variants, arguments.seeds, arguments.set)
