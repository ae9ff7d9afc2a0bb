"""Shared parts of the tasks, with Prefect and without."""

import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from planning.runs import RESULTS
from storage.errors import PassingError
from storage.files import published_directory, write_json, write_text


def _may_pass(_task: Any, _task_run: Any, state: Any) -> bool:
    """Retry named passing errors alone: never out-of-memory, never a hash that does not match."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, PassingError | ConnectionError)


# What is finished is found again by its key in runs/ and prepared/, so Prefect caches nothing.
P = ParamSpec("P")
R = TypeVar("R")


def step(task_run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a Prefect task, as every task of this project is one."""
    return task(
        task_run_name=task_run_name,
        cache_policy=NO_CACHE,
        retries=3,
        retry_delay_seconds=[2, 10, 30],
        retry_condition_fn=_may_pass,
        log_prints=True,
    )


def publishes(experiment: str) -> bool:
    """Return whether this process is a stage of dvc.yaml, the graph of the default experiment: it writes to results/.

    A flow writes nothing there, so that a deployment cannot change what dvc.lock describes.
    """
    return bool(os.environ.get("DVC_STAGE")) and experiment == "default"


def publish_results(experiment: str, name: str, contents: Mapping[str, Any]) -> None:
    """Write ``contents`` (file name to text, or to a JSON value) to results/NAME/ if the process ``publishes``."""
    if not publishes(experiment):
        return
    with published_directory(RESULTS / name, replace=True) as directory:
        for file, content in contents.items():
            (write_text if isinstance(content, str) else write_json)(directory / file, content)
