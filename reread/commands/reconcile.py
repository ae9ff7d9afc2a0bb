"""Close what a killed process left in MLflow and Prefect.

reread reconcile
reread reconcile --json

Runs in MLflow and flow runs in Prefect are closed when no process holds their lock. A live one is left alone, and so is
one of another folder. What MLflow could not take while it was away is recorded from the folders of the runs and
reports. Flows do the same when they start. Finished runs that MLflow does not have are recorded as well. Exit code 1
where something cannot be recorded.
"""

from dataclasses import asdict

from reread.commands.options import AsJson, print_json, progress
from reread.planning.environment import read_environment


def command(as_json: AsJson = False) -> int:
    from reread.tracking.recording import reconcile

    with progress(as_json):
        flow_runs = reconcile_prefect()
        settled = reconcile(read_environment(), everything=True)
    if as_json:
        print_json({**asdict(settled), "flow_runs": dict(flow_runs)})
        return 1 if settled.left else 0
    for name, state in flow_runs:
        print(f"Prefect: flow run {name} is {state}")
    for run_id, status in settled.closed.items():
        print(f"MLflow: run {run_id} is {status}")
    for name in settled.recorded:
        print(f"MLflow: recorded {name}")
    for why in settled.left.values():
        print(f"MLflow: {why}")
    if not (flow_runs or settled.closed or settled.recorded or settled.left):
        print("nothing to do: each run that is shown as running has its process, and nothing waits for MLflow")
    return 1 if settled.left else 0


def reconcile_prefect() -> list[tuple[str, str]]:
    """Close the flow runs whose process is gone; a server is started only where there may be some."""
    from tasks.liveness import close_dead, dead

    if not dead():
        return []
    from reread.commands.servers import prefect_session

    with prefect_session():
        return close_dead()
