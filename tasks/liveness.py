"""Which flow runs of Prefect are alive: the process of one holds a lock, which the kernel frees however it ends.

.locks/flow-runs/ID.lock    until the process has ended, and Prefect has the final state

Prefect shows a flow run as running forever where its process was killed together with its worker. ``close_dead`` closes
those whose lock is free. Flow runs of another folder or machine have no lock here and are left alone.
"""

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.states import Cancelled, Crashed

from reread.storage.locks import file_lock, is_held

FOLDER = Path(".locks") / "flow-runs"
# A flow run that this server does not know may be of another one; its lock file is removed after a week.
FORGOTTEN_SECONDS = 7 * 24 * 3600
GONE = "its process is gone; run again to resume what it trained"
OPEN_STATES = [state for state in StateType if state not in TERMINAL_STATES]
# The locks that this process holds until it ends.
HELD = contextlib.ExitStack()
# The flow runs of this process that a signal ended.
INTERRUPTED: list[UUID] = []


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Let the process hold the lock of the flow run whose function is the block; without a flow run do nothing."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    path = (FOLDER / f"{context.flow_run.id}.lock").absolute()
    unnamed = path.with_suffix(".new")
    HELD.enter_context(file_lock(unnamed))
    # Renamed once it is locked: no process sees the lock of a live flow run free.
    os.rename(unnamed, path)
    # Prefect sends the final state after the function has returned.
    atexit.register(_remove_if_final, path, context.flow_run)
    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        INTERRUPTED.append(context.flow_run.id)
        raise


def _remove_if_final(path: Path, flow_run: FlowRun) -> None:
    """Remove the lock of a flow run whose final state the server has confirmed: Prefect writes its answer there."""
    if flow_run.state is not None and flow_run.state.is_final():
        path.unlink(missing_ok=True)


def cancel_interrupted() -> None:
    """Set Cancelled as the state of the flow runs of this process that a signal ended; Prefect calls them crashed."""
    if not INTERRUPTED:
        return
    with get_client(sync_client=True) as client:
        for flow_run in INTERRUPTED:
            state: State[Any] = Cancelled(message="stopped by a signal; run again to resume what it trained")
            client.set_flow_run_state(flow_run, state, force=True)


def dead() -> list[Path]:
    """Return the locks of flow runs that no process holds."""
    return [path for path in sorted(FOLDER.glob("*.lock")) if not is_held(path)]


def close_dead() -> list[tuple[str, str]]:
    """Set the final state of flow runs whose process is gone, and of their tasks; return their names and states.

    Cancelled where one was being cancelled, else Crashed. Needs Prefect's server.
    """
    closed: list[tuple[str, str]] = []
    with get_client(sync_client=True) as client:
        for path in dead():
            with file_lock(path, blocking=False) as free:
                if free:
                    closed += _close(client, path)
    return closed


def close_dead_flow_runs(report: Callable[[str], None]) -> None:
    """Do as ``close_dead`` does when work starts; report it, and an error of Prefect, in place of raising."""
    if not dead():
        return
    try:
        for name, state in close_dead():
            report(f"Prefect: flow run {name} is {state}: {GONE}")
    except Exception as error:  # whatever Prefect's server raises
        report(f"Prefect cannot close the flow runs whose process is gone ({type(error).__name__}: {error})")


def _close(client: SyncPrefectClient, path: Path) -> Iterator[tuple[str, str]]:
    try:
        flow_run = client.read_flow_run(UUID(path.stem))
    except ObjectNotFound:
        if time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS:
            path.unlink()
        return
    if flow_run.state is None or not flow_run.state.is_final():
        cancelling = flow_run.state is not None and flow_run.state.type == StateType.CANCELLING
        state: State[Any] = Cancelled(message=GONE) if cancelling else Crashed(message=GONE)
        of_it = FlowRunFilter.model_validate({"id": {"any_": [flow_run.id]}})
        still = TaskRunFilter.model_validate({"state": {"type": {"any_": OPEN_STATES}}})
        for task_run in client.read_task_runs(flow_run_filter=of_it, task_run_filter=still):
            client.set_task_run_state(task_run.id, state, force=True)
        client.set_flow_run_state(flow_run.id, state, force=True)
        yield flow_run.name, state.name or state.type.value
    path.unlink()
