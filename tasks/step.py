"""Shared parts of the tasks, with Prefect and without."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from reread.planning.runs import RESULTS
from reread.storage.errors import TransientError
from reread.storage.files import published_directory, write_json, write_text

if TYPE_CHECKING:
    from prefect import Task


def _may_pass(_task: Any, _task_run: Any, state: Any) -> bool:
    """Retry transient errors alone: never out-of-memory, never a hash that does not match."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, TransientError | ConnectionError)


# What is finished is found again by its key in runs/ and prepared/, so Prefect caches nothing.
P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function that a call runs as a Prefect task. ``fn`` is the function itself, which DVC's stages call.

    Prefect takes a second to import: the task is made when it is first used.
    """

    def __init__(self, function: Callable[P, R], task_run_name: str) -> None:
        functools.update_wrapper(self, function)
        self.fn = function
        self.name = function.__name__
        self.task_run_name = task_run_name

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self.task(*arguments, **keywords)

    @functools.cached_property
    def task(self) -> "Task[P, R]":
        """The Prefect task."""
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        return task(
            name=self.name,
            task_run_name=self.task_run_name,
            cache_policy=NO_CACHE,
            retries=3,
            retry_delay_seconds=[2, 10, 30],
            retry_condition_fn=_may_pass,
            log_prints=True,
        )(self.fn)


def step(task_run_name: str) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Make a function a task, as every task of this project is one."""
    return functools.partial(Step, task_run_name=task_run_name)


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
