"""Record the defaults of all settings:  python -m tests.golden.defaults

Defaults enter no run's key, and so they never change: defaults.json is only added to.
"""

import importlib
from dataclasses import is_dataclass
from pathlib import Path

from reread.storage.files import read_json, write_json
from reread.storage.settings import to_json
from reread.storage.source import ROOT, defined_names

FILE = Path(__file__).with_name("defaults.json")


def settings_classes() -> dict[str, type]:
    """Every dataclass of settings whose values enter a key, by its module's name and its own."""
    classes = {}
    for path in sorted(file for room in ROOT.glob("*/__init__.py") for file in room.parent.rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        names = {name for name in defined_names(path) if name.endswith("Settings")}
        room = module.removeprefix("reread.").split(".")[0]
        if room in ("models", "training", "batches", "kinds", "preprocessing") and names:
            members = {f"{module}.{name}": getattr(importlib.import_module(module), name) for name in names}
            classes |= {address: member for address, member in members.items() if is_dataclass(member)}
    return classes


if __name__ == "__main__":
    recorded = read_json(FILE) if FILE.is_file() else {}
    for name, cls in settings_classes().items():
        recorded[name] = {**to_json(cls()), **recorded.get(name, {})}
    write_json(FILE, recorded)
