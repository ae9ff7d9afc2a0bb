"""Record the defaults of all settings:  python -m tests.golden.defaults

Defaults enter no run's key, and so they never change: defaults.json is only added to.
"""

from pathlib import Path

from storage.files import read_json, write_json
from storage.settings import to_json
from tests.planning.test_keys import settings_classes

FILE = Path(__file__).with_name("defaults.json")

if __name__ == "__main__":
    recorded = read_json(FILE) if FILE.is_file() else {}
    for name, cls in settings_classes().items():
        recorded[name] = {**to_json(cls()), **recorded.get(name, {})}
    write_json(FILE, recorded)
