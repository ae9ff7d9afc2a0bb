"""What every task has in common, with Prefect and without."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from storage.errors import PassingError
from storage.files import published_directory, write_json, write_text

RESULTS = Path("results")


def _may_pass(_task: Any, _task_run: Any, state: Any) -> bool:
    """Retry named passing errors alone: never out-of-memory, never a hash that does not match."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, PassingError | ConnectionError)


# What is finished is found again by its key in runs/ and prepared/, so Prefect caches nothing.
step = functools.partial(
    task,
    cache_policy=NO_CACHE,
    retries=3,
    retry_delay_seconds=[2, 10, 30],
    retry_condition_fn=_may_pass,
    log_prints=True,
)


def publish_results(experiment: str, name: str, contents: Mapping[str, Any]) -> None:
    """Write ``contents`` to results/NAME/ when DVC runs this stage: file name to text, or to a JSON value.

    A flow writes nothing there, so that a deployment can never change what dvc.lock describes. Nor does a stage of
    another experiment than the default one, whose graph dvc.yaml has: `reread publish` writes results/EXPERIMENT.
    """
    if not os.environ.get("DVC_STAGE") or experiment != "default":
        return
    with published_directory(RESULTS / name, replace=True) as directory:
        for file, content in contents.items():
            (write_text if isinstance(content, str) else write_json)(directory / file, content)
