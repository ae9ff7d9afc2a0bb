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
    found = {}
    for path in sorted(file for room in ROOT.glob("*/__init__.py") for file in room.parent.rglob("*.py")):
        name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        classes = {one for one in defined_names(path) if one.endswith("Settings")}
        room = name.removeprefix("reread.").split(".")[0]
        if room in ("models", "training", "batches", "kinds", "preprocessing") and classes:
            module = importlib.import_module(name)
            found |= {f"{name}.{one}": getattr(module, one) for one in classes if is_dataclass(getattr(module, one))}
    return found


if __name__ == "__main__":
    recorded = read_json(FILE) if FILE.is_file() else {}
    for name, cls in settings_classes().items():
        recorded[name] = {**to_json(cls()), **recorded.get(name, {})}
    write_json(FILE, recorded)
