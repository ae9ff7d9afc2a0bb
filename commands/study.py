"""Run a study of trained networks, or list the studies.

reread study
reread study gates --help
reread study gates --runs runs/3f2a... --prepared prepared/91c0...
"""

import ast
import sys
from typing import Annotated

import typer

from commands.options import completion
from storage.registry import Registry

REGISTRY = Registry("studies", "study", ("main",))
# A study reads its own options, --help too.
CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", autocompletion=completion(lambda _: REGISTRY.available())),
    ] = None,
) -> None:
    if name in (None, "--help", "-h"):
        for study in REGISTRY.available():
            about = ast.get_docstring(ast.parse((REGISTRY.folder / f"{study}.py").read_bytes()))
            print(f"{study:<12} {about.splitlines()[0]}")
        return
    module = REGISTRY.module(name)
    sys.argv = [f"reread study {name}", *context.args]
    module.main()
