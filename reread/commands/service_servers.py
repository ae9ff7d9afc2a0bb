"""The servers of a team's service: Prefect's and MLflow's on PostgreSQL, with authentication.

No password is on a command line, where every user of the machine would see it.
"""

from pathlib import Path

from reread.commands.servers import Server, module_command, prefect_environment
from reread.commands.service_settings import PREFIX, ServiceSettings
from reread.storage.files import write_text
from reread.storage.secret import PRIVATE
from reread.tracking.server import NAMES

FOLDER = Path(".service")
AUTH = "mlflow-auth.ini"
# One check of a password takes 50 ms of a core, and every request has one. Other processes of the server accept a
# changed password this much longer.
SECONDS_OF_A_LOGIN = 60


def service_servers(settings: ServiceSettings) -> list[Server]:
    """Return the two servers, not started. Their logs are on this terminal (in systemd's journal)."""
    return [prefect_of_service(settings), mlflow_of_service(settings)]


def prefect_of_service(settings: ServiceSettings) -> Server:
    """Prefect's server, which asks each request for the auth string."""
    api = f"{settings.prefect_page}/api"
    environment = {
        **prefect_environment(api, settings.prefect_auth),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": settings.url("prefect", "asyncpg"),
    }
    port = settings.prefect_port
    names = [f"--name={name}" for name in settings.names]
    command = module_command("reread.commands.prefect_server", "--host", settings.host, "--port", str(port), *names)
    return Server("Prefect", command, environment, port, f"{PREFIX}PREFECT_PORT", f"{api}/ready", host=settings.host)


def mlflow_of_service(settings: ServiceSettings) -> Server:
    """MLflow's server, which asks each request for a user's password and passes artifacts on to their place."""
    port = settings.mlflow_port
    command = module_command(
        "reread.tracking.server", "server", "--app-name", "basic-auth", "--workers", str(settings.mlflow_workers),
        "--host", settings.host, "--port", str(port), "--uvicorn-opts", "--log-level warning",
        "--artifacts-destination", settings.artifacts_destination(),
    )  # fmt: skip
    environment = {
        "MLFLOW_BACKEND_STORE_URI": settings.url("mlflow", "psycopg2"),
        "MLFLOW_AUTH_CONFIG_PATH": str(_write_auth(settings).resolve()),
        "MLFLOW_AUTH_ADMIN_PASSWORD": settings.mlflow_password.get_secret_value(),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": settings.mlflow_secret.get_secret_value(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        NAMES: ",".join(settings.names),
    }
    health = f"{settings.mlflow_page}/health"
    return Server("MLflow", command, environment, port, f"{PREFIX}MLFLOW_PORT", health, host=settings.host)


def _write_auth(settings: ServiceSettings) -> Path:
    """Write the configuration of MLflow's users, which only its owner may read.

    Every user may log to every experiment, and only its creator or an administrator may delete one.
    """
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    path = FOLDER / AUTH
    lines = [
        "[mlflow]",
        "default_permission = EDIT",
        # In an INI file a percent sign begins a reference.
        f"database_uri = {settings.url('mlflow', 'psycopg2').replace('%', '%%')}",
        "admin_username = admin",
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth",
        f"auth_cache_ttl_seconds = {SECONDS_OF_A_LOGIN}",
    ]
    write_text(path, "\n".join(lines) + "\n", PRIVATE)
    return path
