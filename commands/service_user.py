"""Make a user of a team's service, or a new password.

Prints what the user's shell needs.

reread service user ada > ada.env
reread service user ada --host tracking.example.org > ada.env
reread service user ada --remove

The user runs `set -a; . ./ada.env` and then `reread run` or `reread serve`. MLflow has a password per user. Prefect has
one for all.
"""

import json
import secrets
from typing import Annotated
from urllib.parse import quote

import typer

from commands.service import request
from commands.service_settings import SETTINGS, ServiceSettings, Settings, read_settings
from storage.errors import InputError, PassingError


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name in MLflow.")],
    host: Annotated[str | None, typer.Option("--host", help="Name by which the user reaches the service.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the user; its runs stay.")] = False,
    settings: Settings = SETTINGS,
) -> None:
    read = read_settings(settings)
    if name == "admin":
        raise InputError("`admin` is the administrator: change its password in MLflow's page, then in the settings")
    known, _ = _call(read, "GET", f"users/get?username={quote(name, safe='')}", passes=(200, 404))
    if remove:
        if known == 404:
            raise InputError(f"MLflow has no user '{name}'")
        _call(read, "DELETE", "users/delete", {"username": name})
        return
    password = secrets.token_urlsafe(18)
    if known == 404:
        _call(read, "POST", "users/create", {"username": name, "password": password})
    else:
        _call(read, "PATCH", "users/update-password", {"username": name, "password": password})
    host = host or read.reached_at
    print(
        f"MLFLOW_TRACKING_URI=http://{host}:{read.mlflow_port}\n"
        f"MLFLOW_TRACKING_USERNAME={name}\n"
        f"MLFLOW_TRACKING_PASSWORD={password}\n"
        f"PREFECT_API_URL=http://{host}:{read.prefect_port}/api\n"
        f"PREFECT_API_AUTH_STRING={read.prefect_auth}"
    )


def _call(
    settings: ServiceSettings, method: str, path: str, body: object = None, passes: tuple[int, ...] = (200,)
) -> tuple[int, str]:
    """Call MLflow as its administrator; PassingError where it does not answer, InputError where it refuses."""
    url = f"{settings.mlflow_page}/api/2.0/mlflow/{path}"
    status, text = request(method, url, settings.mlflow_auth, body)
    if not status:
        raise PassingError(f"{settings.mlflow_page} does not answer ({text}): start it by `reread serve --service`")
    if status not in passes:
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError):
            text = text.strip()
        raise InputError(f"MLflow refuses to change the user: {text.splitlines()[0] if text else status}")
    return status, text
