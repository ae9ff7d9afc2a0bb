"""Run the golden cases and list today's source with those that gave the same:  python -m tests.golden.equivalent

reread/planning/equivalent_sources.json is then committed; `reread adopt` gives old runs their key of today by it. A
case that differs from what is recorded begins a new list for the modules that compute it.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import models
from reread.planning import keys
from reread.planning.adopt import record_source
from reread.planning.validation import read
from reread.storage.files import read_json
from reread.training.settings import Settings
from tests.golden import record
from tests.golden.cases import CASES, TRAINING, Case

# The kind of each of data.WRITERS that is not called by its kind.
KINDS = {"several-labels": "text", "images": "image", "photographs": "image"}


def source(case: Case) -> dict:
    """The modules that compute a case, and their digest today."""
    network = read(models.settings_class(case.model), case.network, "network")
    training = read(Settings, TRAINING | case.training, "training")
    return keys.source(case.model, KINDS.get(case.data, case.data), network, training)


def main() -> int:
    path = record.recording()
    if not path.is_file():
        print(
            f"error: no golden run is recorded for this machine ({path.name}): record them by `python -m "
            "tests.golden.record` in a checkout without your changes, and copy the file",
            file=sys.stderr,
        )
        return 2
    recorded = read_json(path)
    unchanged, digests = defaultdict(lambda: True), {}
    with tempfile.TemporaryDirectory() as directory:
        for name, case in CASES.items():
            about = source(case)
            modules = tuple(about["modules"])
            digests[modules] = about["digest"]
            unchanged[modules] &= record.run(name, Path(directory)) == recorded[name]
    for modules, digest in digests.items():
        record_source(modules, digest, unchanged[modules])
        print(f"{'equal' if unchanged[modules] else 'DIFFERENT'}  {' '.join(modules)}")
    return 0 if all(unchanged.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
