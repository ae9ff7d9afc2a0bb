"""hyperfine: the JSON of `hyperfine --export-json FILE`. Each timed run is a process of its own.

Of one file each run is a unit. Of several files each is a block: its score is the median of the runs of a command, the
seed is the number of the file, and with ``--paired`` the blocks are pairs. The commands are the arms; with ARM=FILE
(two versions of a program) they are the metrics where a file has several.
"""

import statistics
from typing import Any

from reread.importers import Source, Table
from reread.storage.errors import InputError
from reread.storage.files import read_object

SECONDS = "seconds"
IN_A_ROW = (
    "all runs of a command followed one another, so that a drift of the machine would count as a difference: several "
    "files in turn, judged by --paired, exclude it."
)


def recognises(source: Source) -> bool:
    head = source.head
    return head.lstrip().startswith(b"{") and all(key in head for key in (b'"results"', b'"command"', b'"median"'))


def read(source: Source) -> Table:
    """Return one row per run of a command, or, of several files, per command."""
    rows = []
    try:
        results = read_object(source.path, "results")["results"]
        for result in results:
            refuse_failed(source, result)
            times = result.get("times") or [result["median"]]
            if source.count > 1:
                rows.append((result["command"], source.number, statistics.median(times)))
            else:
                rows += [(result["command"], number, time) for number, time in enumerate(times)]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{source.text} is no file of hyperfine: write it by --export-json") from None
    if not rows:
        raise InputError(f"{source.text} is empty: it has no result")
    commands, seeds, seconds = map(list, zip(*rows, strict=True))
    metrics = commands if source.arm is not None and len(results) > 1 else [SECONDS] * len(rows)
    cautions = [IN_A_ROW] if source.count == 1 else []
    columns = {"arm": commands, "seed": seeds, "metric": metrics, "score": seconds}
    return Table(columns, lower_is_better=True, cautions=cautions)


def refuse_failed(source: Source, result: dict[str, Any]) -> None:
    """Raise InputError where a run of the command failed: its time is none of its work."""
    codes = [code for code in result.get("exit_codes") or () if code != 0]
    if codes:
        raise InputError(f"{source.text}: '{result['command']}' failed in {len(codes)} runs (exit code {codes[0]})")
