"""Prefect's runs that this code is in. A stage of DVC is in none, and imports no Prefect: that takes a second."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.context import FlowRunContext, TaskRunContext

# Where `reread ui` serves Prefect's pages.
UI = "http://127.0.0.1:4200"


def flow_context() -> "FlowRunContext | None":
    """Return the context of the flow run that this code is in, or None."""
    if not _is_imported():
        return None
    from prefect.context import FlowRunContext

    return FlowRunContext.get()


def task_context() -> "TaskRunContext | None":
    """Return the context of the task run that this code is in, or None."""
    if not _is_imported():
        return None
    from prefect.context import TaskRunContext

    return TaskRunContext.get()


def is_retry() -> bool:
    """Return whether Prefect runs the task that this code is in again, after a failure that may pass."""
    context = task_context()
    return context is not None and context.task_run.run_count > 1


def flow_run_id() -> str | None:
    """Return the id of the flow run that this process is in, or None."""
    if not _is_imported():
        return os.environ.get("PREFECT__FLOW_RUN_ID")
    from prefect.runtime import flow_run

    run_id: str | None = flow_run.id
    return run_id


def flow_run_page() -> str | None:
    """Return the page of that flow run, or None: on the server of PREFECT_API_URL, else where `reread ui` shows it.

    The server of a session ends with it; `reread ui` shows the same runs.
    """
    run_id = flow_run_id()
    if run_id is None or not os.environ.get("PREFECT_API_URL"):
        return run_id and f"{UI}/runs/flow-run/{run_id}"
    from prefect.runtime import flow_run

    page: str | None = flow_run.ui_url
    return page


def _is_imported() -> bool:
    """Return whether this process has imported Prefect: who has entered a run has done so."""
    return "prefect" in sys.modules
