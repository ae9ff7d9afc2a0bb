"""The kind of machine that results/ is of: figures of another kind of CPU or another torch differ in the last digits.

python -m tasks.machine              write results/machine.json; where the kind has changed, DVC makes the results again
python -m tasks.machine --check      write nothing; refuse where the kind has changed
"""

import argparse
from collections.abc import Mapping
from typing import Any

from reread.planning.keys import this_machine
from reread.planning.runs import RESULTS
from reread.storage.errors import InputError, command
from reread.storage.files import read_json, write_json

FILE = "machine.json"


def recorded() -> dict[str, Any]:
    """Return the kind of machine that results/ is of; empty where none is recorded."""
    path = RESULTS / FILE
    return read_json(path) if path.is_file() else {}


def refuse_other_machine() -> None:
    """Raise InputError where results/ is of another kind of machine than this one."""
    before, now = recorded(), this_machine()
    if before != now:
        raise InputError(
            f"{RESULTS / FILE}: the results are of another kind of machine ({differing(before, now)}): `make repro` "
            "records this one and makes them again; commit them before you change a parameter"
        )


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what differs between two kinds of machine: ``device AVX512, here AVX2``."""
    names = [name for name in now if before.get(name) != now[name]]
    return "; ".join(f"{name} {before.get(name)}, here {now[name]}" for name in names)


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.machine", description="Record the kind of this machine.")
    parser.add_argument("--check", action="store_true", help="write nothing, refuse where results/ is of another kind")
    if parser.parse_args().check:
        refuse_other_machine()
        return
    before, now = recorded(), this_machine()
    if before and before != now:
        print(
            f"results/ is of another kind of machine ({differing(before, now)}): they are made again. Commit them, "
            "and `dvc metrics diff` shows only what you change."
        )
    if before != now:
        write_json(RESULTS / FILE, now)


if __name__ == "__main__":
    main()
