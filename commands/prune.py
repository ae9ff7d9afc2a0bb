"""Remove what is not needed any more, after asking: old checkpoints, stale runs, prepared arrays, leftovers.

python -m commands.prune [--dry-run] [--yes]
"""

import argparse
import sys

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from commands.pruning import Item, find, remove
from storage.errors import InputError, command


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m commands.prune", description="Remove checkpoints, runs and arrays that nothing needs."
    )
    parser.add_argument("--dry-run", action="store_true", help="list what can go and leave it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    items = find()
    if not items:
        console.print("nothing to remove")
        return
    Console(highlight=False).print(table(items))
    if arguments.dry_run:
        return
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise InputError("nothing is removed without being asked: say --yes where there is no terminal")
        if console.input("remove all of these? \\[y/N] ").strip().lower() not in ("y", "yes"):
            console.print("nothing was removed")
            return
    freed, in_use = remove(items)
    console.print(f"freed {decimal(freed)}")
    for item in in_use:
        console.print(f"left: {item.path} is in use now", markup=False)


def table(items: list[Item]) -> Table:
    """What can go, and what it frees in total."""
    listed = Table(box=None, padding=(0, 3, 0, 0), show_footer=True)
    total = f"{decimal(sum(item.bytes for item in items))} in all"
    for title, footer in (("what", ""), ("where", total), ("why", "")):
        listed.add_column(title, footer, overflow="fold", no_wrap=title == "what")
    listed.add_column("size", justify="right", no_wrap=True)
    for item in items:
        listed.add_row(item.kind, Text(str(item.path)), Text(item.why), decimal(item.bytes))
    return listed


if __name__ == "__main__":
    main()
