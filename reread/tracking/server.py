"""`mlflow server` behind the door: python -m reread.tracking.server server --app-name reread --port 5000.

The app ``reread`` serves the project's database and asks for the folder's secret. ``basic-auth`` serves a team's, where
MLflow itself asks for the passwords of its users.
"""

import os
from importlib.metadata import EntryPoint

from reread.storage.secret import project_secret
from reread.tracking.door import Door

# By which clients reach a team's server, separated by commas.
NAMES = "REREAD_SERVER_NAMES"
GROUP = "mlflow.app"
APPS = [
    EntryPoint("reread", "reread.tracking.server:project", GROUP),
    EntryPoint("basic-auth", "reread.tracking.server:team", GROUP),
]


def project() -> Door:
    """Return the application on the project's database."""
    from mlflow.server.fastapi_app import app

    return Door(app, project_secret())


def team() -> Door:
    """Return the application of a team's service."""
    names = [name for name in os.environ[NAMES].split(",") if name]
    # The door checks the Host. MLflow would know a proxy's pages neither by their Host nor by their Origin.
    os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = "*"
    os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"https://{name}" for name in names)
    from mlflow.server.auth import create_app

    confine_artifacts()
    return Door(create_app(), names=names)


def confine_artifacts() -> None:
    """Let MLflow refuse an experiment with a place of its own for artifacts.

    The server would write there with its rights, and read: at ``file:///ANYWHERE``, or in any bucket that it reaches.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
    from mlflow.store.tracking.dbmodels.models import SqlExperiment
    from sqlalchemy import event

    @event.listens_for(SqlExperiment, "before_insert")
    def refuse(_mapper: object, _connection: object, experiment: SqlExperiment) -> None:
        if experiment.artifact_location:
            reason = "artifact_location: this server chooses the place of artifacts: leave it out"
            raise MlflowException(reason, INVALID_PARAMETER_VALUE)


def main() -> None:
    """Start MLflow's own command, which finds these applications in place of its own."""
    from mlflow.utils import plugins

    others = plugins.get_entry_points
    plugins.get_entry_points = lambda group: APPS if group == GROUP else others(group)
    from mlflow.cli import cli

    cli(prog_name="mlflow")


if __name__ == "__main__":
    main()
