"""The provenance of a run as MLflow's tags: commit, versions of the data, Prefect's run, machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.planning.keys import this_machine
from reread.planning.schema import read_yaml
from reread.storage.files import sha256_file
from reread.storage.git import checkout
from reread.storage.job import Job
from tasks.prefect_run import flow_run_id, flow_run_page


def commit() -> dict[str, Any]:
    """The git commit of the source and whether files differ from it; ``none`` outside a checkout."""
    head, dirty = checkout() or ("none", False)
    return {"commit": head, "dirty": dirty}


def described(machine: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The report's lines on how it was run; what a machine has not, such as CUDA, is left out."""
    about = {name: value for name, value in machine.items() if value is not None}
    if "cuda" not in about:
        about["device"] = f"CPU, {about['device']}"
    head = commit()
    return {**about, "threads per run": threads, "commit": head["commit"], "uncommitted changes": head["dirty"]}


def provenance(job: Job) -> dict[str, Any]:
    """Tags of the MLflow run of ``job``; names are flat, values text, numbers or truth values."""
    tags = {
        **{f"git.{name}": value for name, value in commit().items()},
        "data.manifest.sha256": sha256_file(Path("data.manifest.json")),
        "deterministic": job.training["deterministic"],
        **this_machine(),
    }
    if Path("data.dvc").is_file():
        tags["data.dvc.md5"] = read_yaml(Path("data.dvc"))["outs"][0]["md5"]
    if flow_run := flow_run_id():
        tags |= {"prefect.flow_run": flow_run, "prefect.url": flow_run_page() or ""}
    if os.environ.get("DVC_STAGE"):
        tags["dvc.stage"] = os.environ["DVC_STAGE"]
    return tags
