"""Prepare the arrays that an experiment's variants read of one data set, or reuse them.

python -m tasks.preprocess --data docstrings [--experiment default]
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.planning.resolve import make_plan
from reread.preprocessing.prepare import prepare, summary
from reread.preprocessing.settings import FOLD
from reread.preprocessing.workers import Workers, use_workers
from reread.storage.errors import command, refuse_unknown
from reread.storage.prepared import SPLITS
from tasks.progress import say
from tasks.step import publish_results, step


@step(task_run_name="preprocess-{preparation[data]}")
def preprocess(preparation: Mapping[str, Any], fresh: bool = False) -> str:
    """Prepare what one entry of ``Plan.preparations`` describes; return the folder in prepared/."""
    directory = prepared_in(Path(preparation["directory"]).parent, preparation, fresh)
    about = summary(directory)
    counts = {split: stop - start for split, (start, stop) in about["splits"].items()}
    rows = ", ".join(f"{counts[split]} {split}" for split in SPLITS)
    fold = about.get(FOLD)
    if fold is None:
        say(f"{preparation['data']}: {rows} rows in {directory}")
    elif fold["number"] == 1:
        say(f"{preparation['data']}, seed {fold['seed']}: {fold['count']} folds, the first of {rows} rows")
    return str(directory)


def prepared_in(root: Path, preparation: Mapping[str, Any], fresh: bool = False) -> Path:
    """Prepare what one entry of ``Plan.preparations`` describes in a folder of ``root``, without a word of it."""
    with use_workers(Workers(**preparation["workers"])):
        return prepare(preparation["data"], preparation["settings"], prepared_root=root, fresh=fresh)


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.preprocess", description="Prepare the arrays of a data set.")
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    plan = make_plan(arguments.experiment)
    refuse_unknown([arguments.data], plan.data, f"the data sets of experiment '{arguments.experiment}'")
    wanted = [about for about in plan.preparations().values() if about["data"] == arguments.data]
    summaries = [summary(Path(preprocess.fn(about))) for about in wanted]
    names = ["prepared.json"] + [f"prepared-{about['prepared_key']}.json" for about in summaries[1:]]
    publish_results(plan.name, f"preprocess/{arguments.data}", dict(zip(names, summaries, strict=True)))


if __name__ == "__main__":
    main()
