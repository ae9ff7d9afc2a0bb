"""The environment: every REREAD_* variable, read once where a command, a deployment or a DVC stage begins.

Rooms below reread/planning/ get the values as arguments and read no variable.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from reread.storage.errors import InputError

PREFIX = "REREAD_"
Executor = Literal["local", "slurm"]
EXECUTORS = get_args(Executor)
Count = Annotated[int, Field(ge=1)]


class Environment(BaseSettings):
    """The variables; the name of one is REREAD_ and the field's name in capitals."""

    # An empty variable counts as none: an empty REREAD_RUNS would be the project's folder itself.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    runs: Path = Field(Path("runs"), description="folder of the runs")
    prepared: Path = Field(Path("prepared"), description="folder of the prepared arrays")
    reports: Path = Field(Path("reports"), description="folder of the reports")
    machine: Path | None = Field(
        None,
        description="file that `python -m reread.training.machine` wrote on another machine: jobs are made for that "
        "one, and none is trained here; by default this machine",
    )
    workers: Count = Field(2, description="runs that train at once")
    runs_per_gpu: Count = Field(1, description="runs that may share a GPU; the results are the same, the speed is not")
    processes_per_run: Count = Field(1, description="processes that train one run together, each on its own GPU")
    executor: Executor = Field("local", description="where runs train: this machine, or a Slurm cluster")
    slurm: dict[str, Any] = Field(
        {}, description='options of sbatch as JSON, as submitit names them: {"partition": "gpu", "time": 600}'
    )
    runs_per_job: Count = Field(1, description="runs that one task of a Slurm array trains in turn")
    preprocessing: Count | Literal["dask"] | None = Field(
        None, description="processes that preprocess, or `dask`; by default one per core"
    )
    dask_scheduler: str | None = Field(
        None,
        validation_alias="DASK_SCHEDULER_ADDRESS",
        description="the scheduler of a Dask cluster, which then preprocesses by default",
    )
    mirror: Path | None = Field(
        None, description="folder with the archives of published data sets, read in place of the network"
    )
    published: bool | Literal["older"] = Field(
        True,
        description="runs in `results/` that today's code trained count as finished, whichever machine trained them; "
        "`older`: those of older code too; `false`: train them",
    )
    project: Path | None = Field(None, description="folder in which a Prefect worker runs deployments; set by `serve`")


def read_environment() -> Environment:
    """Read the variables; InputError names the first that is wrong."""
    try:
        return Environment()
    except SettingsError:  # of the one variable that holds JSON
        raise InputError(
            f"{variable('slurm')} is not JSON: it has {Environment.model_fields['slurm'].description}"
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = variable(str(first["loc"][0]))
        raise InputError(
            f"{name}={first['input']} is wrong: {first['msg'].replace('Input', 'it', 1)} "
            f"({Environment.model_fields[str(first['loc'][0])].description})"
        ) from None


def variable(field: str) -> str:
    """Return the name of the variable of ``field``."""
    alias = Environment.model_fields[field].validation_alias if field in Environment.model_fields else field
    return str(alias) if alias else f"{PREFIX}{field.upper()}"


def table() -> list[tuple[str, str, str]]:
    """Return (variable, default, description) of each."""
    return [
        (variable(name), "" if field.default is None else str(field.default), field.description or "")
        for name, field in Environment.model_fields.items()
    ]
