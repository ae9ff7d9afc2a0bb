"""The servers of a team's service: Prefect's and MLflow's on PostgreSQL, with authentication.

No password is on a command line, where every user of the machine would see it.
"""

import os
from pathlib import Path

from commands.servers import Server, module_command
from commands.service_settings import PREFIX, ServiceSettings

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
    environment = {
        # The server calls itself at this address.
        "PREFECT_API_URL": f"{settings.prefect_page}/api",
        # Its page is reached by other names, too: it asks the host that it came from.
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_API_AUTH_STRING": settings.prefect_auth,
        "PREFECT_API_AUTH_STRING": settings.prefect_auth,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": settings.url("prefect", "asyncpg"),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }
    port = settings.prefect_port
    command = module_command("prefect", "server", "start", "--host", settings.host, "--port", str(port))
    health = f"{settings.prefect_page}/api/ready"
    return Server("Prefect", command, environment, port, f"{PREFIX}PREFECT_PORT", health, host=settings.host)


def mlflow_of_service(settings: ServiceSettings) -> Server:
    """MLflow's server, which asks each request for a user's password and passes artifacts on to their place."""
    port = settings.mlflow_port
    command = module_command(
        "mlflow", "server", "--app-name", "basic-auth", "--workers", str(settings.mlflow_workers),
        "--host", settings.host, "--port", str(port), "--uvicorn-opts", "--log-level warning",
        "--artifacts-destination", settings.artifacts_destination(),
    )  # fmt: skip
    if settings.mlflow_hosts:
        command += ["--allowed-hosts", settings.mlflow_hosts]
    environment = {
        "MLFLOW_BACKEND_STORE_URI": settings.url("mlflow", "psycopg2"),
        "MLFLOW_AUTH_CONFIG_PATH": str(_write_auth(settings).resolve()),
        "MLFLOW_AUTH_ADMIN_PASSWORD": settings.mlflow_password.get_secret_value(),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": settings.mlflow_secret.get_secret_value(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
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
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path
