"""The command ``reread``. Its subcommands are the files of this folder, and only the one that is called is imported."""

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from reread.commands.options import first_line
from reread.storage.errors import InputError, command
from reread.storage.registry import Registry

REGISTRY = Registry("reread.commands", "command", ("command",))
INTERRUPTED = 130


class Subcommands(TyperGroup):
    """The subcommands by name and first line of help; the one that is called is replaced by its own file's command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # of Typer's own copy of Click
        if args and args[0] not in REGISTRY and (REGISTRY.folder / f"{args[0]}.py").is_file():
            REGISTRY.module(args[0])  # says what the file lacks
        name, resolved, rest = super().resolve_command(ctx, args)
        if not resolved or not name:
            return name, None, rest
        name, rest = file_of(name, rest)
        return display_name(name), load(name), rest


def file_of(name: str, rest: list[str]) -> tuple[str, list[str]]:
    """Return the file of a subcommand and its arguments: ``data add FILE`` is data_add.py with FILE."""
    two = f"{name}_{rest[0]}" if rest else ""
    return (two, rest[1:]) if two in REGISTRY else (name, rest)


def display_name(name: str) -> str:
    """Return a subcommand as it is typed: of the file data_add.py, ``data add``."""
    return name.replace("_", " ")


def load(name: str) -> Any:
    """Import reread/commands/NAME.py and return its ``command`` for Typer, with the file's docstring as its help."""
    module = REGISTRY.module(name)
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    # \b keeps the lines of a paragraph as they are.
    text = (module.__doc__ or "").strip().replace("\n\n", "\n\n\b\n")
    settings = getattr(module, "CONTEXT", {})
    app.command(display_name(name), help=text, context_settings={"help_option_names": ["-h", "--help"], **settings})(
        module.command
    )
    return typer.main.get_command(app)


def make_app() -> typer.Typer:
    """Make the application with a line for each subcommand that there is a file of."""
    app = typer.Typer(
        cls=Subcommands,
        help="Retest a paper's claim: versioned data in, a verdict with an interval out.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)
    for name in REGISTRY.available():
        app.command(display_name(name), help=first_line(REGISTRY, name))(lambda: None)
    return app


@command
def main(arguments: list[str] | None = None) -> int | None:
    """Run the command. A usage error is one line and exit code 2, as any other bad input is."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that is not UTF-8 gets \\u2501 for a letter that it lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int | None = make_app()(arguments or ["--help"], prog_name="reread", standalone_mode=False)
    except typer.TyperException as error:
        usage = getattr(error, "ctx", None)
        hint = f" (see `{usage.command_path} --help`)" if usage else ""
        raise InputError(f"{error.format_message().rstrip('.')}{hint}") from None
    except typer.Abort as abort:
        # Typer aborts for Ctrl-D, and takes an EOFError of ours for one.
        raise (abort.__cause__ or KeyboardInterrupt()) from None
    if code == INTERRUPTED:  # Typer returns it for Ctrl-C
        raise KeyboardInterrupt
    return code
