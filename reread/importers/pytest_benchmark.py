"""pytest-benchmark: the JSON of `pytest --benchmark-json=FILE`, one file per process.

The rounds of a process share its memory layout and its moment, so they are no units: a process is one, and its score is
the median of its rounds in seconds. Run the benchmarks several times, a file each: the seed is the number of the file.
The benchmarks are the arms; with ARM=FILE (two versions of a program) they are the metrics.
"""

from reread.importers import Source, Table
from reread.storage.errors import InputError
from reread.storage.files import read_object

SECONDS = "seconds"


def recognises(source: Source) -> bool:
    return b'"machine_info"' in source.head and source.head.lstrip().startswith(b"{")


def read(source: Source) -> Table:
    """Return one row per benchmark."""
    benchmarks = read_object(source.path, "benchmarks")["benchmarks"]
    try:
        names = [benchmark["name"] for benchmark in benchmarks]
        # Of files with tests of one name, the path tells them apart.
        if len(set(names)) < len(names):
            names = [benchmark["fullname"] for benchmark in benchmarks]
        medians = [benchmark["stats"]["median"] for benchmark in benchmarks]
    except (KeyError, TypeError):
        raise InputError(f"{source.text} is no file of pytest-benchmark: write it by --benchmark-json") from None
    if not names:
        raise InputError(f"{source.text} is empty: it has no benchmark")
    other = [SECONDS] * len(names) if source.arm is None else names
    columns = {"arm": names, "metric": other, "score": medians}
    return Table(columns, numbered=True, lower_is_better=True)
