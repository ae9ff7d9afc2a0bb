"""How a flow is defined: its name, the name of a run, and a failure that begins with what to do."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow, flow
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Failed

from flows.parameters import name_of
from reread.storage.errors import InputError, TransientError, WorkFailed
from tasks.liveness import locked
from tasks.progress import outermost_flow

P = ParamSpec("P")
R = TypeVar("R")


def project_flow(
    name: str, named: Callable[[Mapping[str, Any]], str] = name_of
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a function a Prefect flow whose runs are ``named`` by their parameters: by default by their experiment."""

    def define(function: Callable[P, R]) -> Flow[P, R]:
        body = locked()(failing_in_one_line(outermost_flow()(function)))
        return flow(name=name, flow_run_name=lambda: named(flow_run.parameters), log_prints=True)(body)

    return define


def failing_in_one_line(function: Callable[P, R]) -> Callable[P, R]:
    """Make an error that a user can act on the message of the failed flow run, without a traceback in its log.

    Prefect raises the error again where the flow was called. Outside a flow run it is raised as it is.
    """

    @functools.wraps(function)
    def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except (InputError, WorkFailed, TransientError) as error:
            if FlowRunContext.get() is None:
                raise
            hint = "; it may be temporary: run it again" if isinstance(error, TransientError) else ""
            return cast(R, Failed(message=f"{error}{hint}", data=error))

    return run
