"""Serve a registered model over HTTP, in batches.

reread serve model docstrings
reread serve model docstrings --variant tf-idf --port 8001

Then open its address in a browser, or send rows as the printed line does. The password is that of the folder's
secret.env: a browser asks for it, and programs send it as a Bearer token.

Requests that arrive together are answered together. Without --variant or --version the champion of the data set
answers. It listens on 127.0.0.1 unless --host names another address.
"""

import signal
import socket
from typing import Annotated

import typer
from rich.console import Console

from reread.commands.options import DATA, VARIANTS
from reread.commands.servers import HOST, SIGNALS, basic_login, is_free
from reread.storage.errors import InputError
from reread.storage.secret import SECRET, project_secret


def command(
    data: Annotated[str, typer.Argument(metavar="NAME", help="The model's data set.", autocompletion=DATA)],
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This variant's best version on validation.", autocompletion=VARIANTS),
    ] = None,
    version: Annotated[int | None, typer.Option(metavar="N", help="This version.")] = None,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port to listen on.")] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = HOST,
) -> None:
    if not is_free(port, host):
        raise InputError(
            f"port {port} of {host} is not free, or {host} is no address of this machine: choose another by --port or "
            "--host"
        )
    import uvicorn

    from reread.tracking.door import Door
    from reread.tracking.punctual import Punctual
    from reread.tracking.registry import load_model
    from reread.tracking.scoring import make_app

    console = Console(highlight=False, soft_wrap=True)
    with console.status("loading the model ..."):
        model = load_model(data, variant=variant, version=version)

    secret = project_secret()

    def started() -> None:
        page = f"http://{host}:{port}"
        token = secret if console.is_terminal else f"$(sed s/.*:// {SECRET})"
        console.print(
            f"{model.variant}, version {model.version} of {model.name}: {page}\n"
            f"Log in with {basic_login(console)}, or:\n"
            f"""  curl {page}/predict -H "Authorization: Bearer {token}" """
            "-H 'Content-Type: application/json' "
            """-d '{"rows": ["Return the eigenvalues."]}'\n"""
            "Ctrl-C stops it.",
            markup=False,
        )

    app = Door(make_app(model, started), secret, {host, socket.gethostname()})
    for number in SIGNALS:
        # uvicorn ends in order on these, and then sends them again.
        signal.signal(number, lambda *_: None)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, http=Punctual)
