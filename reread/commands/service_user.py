"""Make a user of a team's service, or a new password.

reread service user ada --output ada.env
reread service user ada --output ada.env --host tracking.example.org
reread service user ada --remove

The file has the variables that the user's shell needs, and only its owner may read it. The user runs
`set -a; . ./ada.env` and then `reread run` or `reread serve`. MLflow has a password per user. Prefect has one for all:
anybody who knows it can run any command on every worker.
"""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from reread.commands.service import request
from reread.commands.service_settings import PREFIX, SETTINGS, ServiceSettings, Settings, read_settings
from reread.storage.errors import InputError, TransientError
from reread.storage.files import write_text
from reread.storage.secret import OTHERS, PRIVATE, draw


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name in MLflow.")],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the variables there; default: print them.")
    ] = None,
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
        print(
            f"{name} is removed from MLflow. Prefect has one password for all: {name} still knows it, and with it can "
            f"run any command on every worker. Write another {PREFIX}PREFECT_PASSWORD into {settings}, start the "
            "service again, and give each user a new file."
        )
        return
    _refuse_output(output)
    password = draw()
    if known == 404:
        _call(read, "POST", "users/create", {"username": name, "password": password})
    else:
        _call(read, "PATCH", "users/update-password", {"username": name, "password": password})
    host = host or read.reached_at
    variables = (
        f"MLFLOW_TRACKING_URI=http://{host}:{read.mlflow_port}\n"
        f"MLFLOW_TRACKING_USERNAME={name}\n"
        f"MLFLOW_TRACKING_PASSWORD={password}\n"
        f"PREFECT_API_URL=http://{host}:{read.prefect_port}/api\n"
        f"PREFECT_API_AUTH_STRING={read.prefect_auth}\n"
    )
    if output:
        write_text(output, variables, PRIVATE)
        print(f"{output} has the addresses and passwords of {name}")
    else:
        print(variables, end="")


def _refuse_output(output: Path | None) -> None:
    """Raise InputError, before a password is changed, where it cannot be written or others could read it."""
    if output:
        if output.is_dir() or not os.access(output.parent, os.W_OK):
            raise InputError(f"--output {output}: no file can be written there: name one in a folder of yours")
        return
    mode = os.fstat(sys.stdout.fileno()).st_mode
    if stat.S_ISREG(mode) and mode & OTHERS:
        raise InputError("other users may read the file that the passwords would go to: name it by --output instead")


def _call(
    settings: ServiceSettings, method: str, path: str, body: object = None, passes: tuple[int, ...] = (200,)
) -> tuple[int, str]:
    """Call MLflow as its administrator; TransientError where it does not answer, InputError where it refuses."""
    url = f"{settings.mlflow_page}/api/2.0/mlflow/{path}"
    status, text = request(method, url, settings.mlflow_auth, body)
    if not status:
        raise TransientError(f"{settings.mlflow_page} does not answer ({text}): start it by `reread serve --service`")
    if status not in passes:
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError):
            text = text.strip()
        raise InputError(f"MLflow refuses to change the user: {text.splitlines()[0] if text else status}")
    return status, text
