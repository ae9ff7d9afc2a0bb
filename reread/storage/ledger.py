"""The ledger of test reads: who read the test split of which data, with which settings, and when.

Rows of a test split are given within ``open_test_split`` alone, which writes the entry first. ``Prepared.rows`` refuses
them outside of it, so no command can pass by the ledger.

results/test-reads.jsonl is committed, one JSON object per line:

    date     UTC, to the second: when the read began
    reader   the experiment's name, or what else read: "speed record 94", "study copying_gates"
    plan     the key of what decides the read; of an experiment: settings, seeds, comparisons and data, on any machine
    data     by data set whose test split was read, its version in data.manifest.json; "" where it is not known
    changed  what differs from the reader's last entry, or from the last one that shares a network's settings
    parts    a short key of each named part of the plan, from which ``changed`` is found
    run      of a run that was evaluated alone: its key; ``plan`` is then the key of its settings
    folds    of an experiment that is cross-validated: how many; each row of the data was a row of test in turn
    added    of an entry that was added afterwards: the commit that shows the read
    before   the sha256 of the line before, without its end; "" in the first line

A reader has one entry for each plan. Entries are appended in the order of their arrival, which need not be that of
their dates: those of another machine come later, in a file of their own (``add_reads``), and are chained anew. A line
that was changed, removed or inserted breaks the chain at the line after it.

On a machine without results/ the entry is written beside what was read for, such as in the run's folder alone.

A test split that steered a choice no longer measures unseen data (Dwork et al. 2015, "The reusable holdout").
"""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError
from reread.storage.files import content_key, sha256_bytes, write_text
from reread.storage.locks import file_lock
from reread.storage.run_folder import EVALUATION, RunFolder

LEDGER = Path("results/test-reads.jsonl")
FIRST = "first read"
NOT_KNOWN = "not known"
VARIANT = "variant "
# Digits of a part's key.
SHORT = 12
_open: Counter[tuple[str, str]] = Counter()
_of_open = threading.Lock()


@dataclass(frozen=True)
class SplitRead:
    """One entry: the first read of test splits with one plan."""

    date: str
    reader: str
    plan: str
    data: Mapping[str, str]
    changed: str
    parts: Mapping[str, str] = field(default_factory=dict)
    run: str | None = None
    folds: int | None = None
    added: str | None = None
    before: str = ""

    @property
    def read(self) -> tuple[Any, ...]:
        """The identity of a read: equal for entries of which one is enough."""
        return self.reader, self.plan, tuple(sorted(self.data.items()))

    def line(self) -> str:
        """Return the entry as a line of the ledger, without its end; a field that is None is left out."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(values, ensure_ascii=False)

    @property
    def note(self) -> str:
        """The note in a list of reads beside ``changed``."""
        folds = f" (each row in turn, by {self.folds} folds)" if self.folds else ""
        return folds + (f" (added afterwards: {self.added})" if self.added else "")

    def check(self) -> None:
        """Raise TypeError where a value is of another type than one that ``open_test_split`` writes."""
        if not (isinstance(self.data, dict) and isinstance(self.parts, dict)):
            raise TypeError("'data' or 'parts' is no object")
        texts = (self.date, self.reader, self.plan, self.changed, self.before, *self.data.values())
        if not all(isinstance(value, str) for value in (*texts, *self.parts.values())):
            raise TypeError("a value is no text")


@contextmanager
def open_test_split(
    reader: str,
    plan: str,
    data: Mapping[str, str],
    parts: Mapping[str, Any],
    *,
    run: str | None = None,
    folds: int | None = None,
    beside: Path | None = None,
    path: Path = LEDGER,
    now: datetime | None = None,
) -> Iterator[list[SplitRead]]:
    """Write the entry of a read, then let this process read test rows of ``data`` within the block.

    reader, plan, data, run and folds: as in the ledger. parts: JSON values by name ("variant han", "seeds"). beside: a
    second file that gets the entry, from which ``add_reads`` brings it home. Yields the whole ledger. A machine without
    results/ keeps ``beside`` alone. InputError where the ledger cannot be read or written: no row is given then.
    """
    keys = {name: content_key(value)[:SHORT] for name, value in parts.items()}
    entry = SplitRead(_date(now), reader, plan, dict(sorted(data.items())), FIRST, keys, run, folds)
    entries = _append(beside, [entry], lock=False) if beside else []
    if beside is None or path.parent.is_dir():
        entries = _append(path, [entry])
    with _of_open:
        _open.update(data.items())
    try:
        yield entries
    finally:
        with _of_open:
            _open.subtract(data.items())


def open_run_test_split(
    run: RunFolder, description: Mapping[str, Any], path: Path = LEDGER, now: datetime | None = None
) -> AbstractContextManager[list[SplitRead]]:
    """``open_test_split`` for one run alone: the entry is in its folder and, where there is one, in the ledger.

    description: prepared.json of its data.
    """
    job = run.job
    return open_test_split(
        job.get("experiment", ""),
        settings_key(job),
        version_of(description),
        {},
        run=run.key,
        beside=reads_file(run.directory),
        path=path,
        now=now,
    )


def refuse_unrecorded(description: Mapping[str, Any], split: str) -> None:
    """Raise InputError for the test split of data, by its prepared.json, whose read this process has not recorded."""
    if split != "test":
        return
    ((name, version),) = version_of(description).items()
    if _open[name, version] <= 0:
        raise InputError(
            f"the test split of {name} is read without an entry in {LEDGER}: read it within "
            "reread.storage.ledger.open_test_split, which writes one"
        )


def version_of(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the data set of a prepared.json with its version, "" where it names none."""
    return {str(description.get("name", "")): str(description.get("data_version", ""))}


def read_ledger(path: Path = LEDGER) -> list[SplitRead]:
    """Return all entries in order; none where the file is missing.

    InputError names the line that cannot be read, or at which the chain is broken.
    """
    return _entries(path, _lines(path))


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}): restore the file from git") from None


def _entries(path: Path, lines: Sequence[bytes]) -> list[SplitRead]:
    entries: list[SplitRead] = []
    before = ""
    for number, line in enumerate(lines, 1):
        try:
            entry = SplitRead(**json.loads(line))
            entry.check()
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is no ledger entry ({error}): restore the file from git") from None
        if entry.before != before:
            raise InputError(
                f"{path}, line {number} does not follow the line before it (its 'before' is no sha256 of that): "
                "restore the file from git, and add entries of another machine or branch by `reread ledger --add FILE`"
            )
        entries.append(entry)
        before = sha256_bytes(line)
    return entries


def add_reads(new: Iterable[SplitRead], path: Path = LEDGER) -> list[SplitRead]:
    """Append entries of runs, of another machine or of a branch, and return the whole ledger."""
    return _append(path, list(new), arrived=True)


def _append(path: Path, new: Sequence[SplitRead], arrived: bool = False, lock: bool = True) -> list[SplitRead]:
    """Append the entries whose read has none; ``arrived``: from elsewhere, with ``changed`` as it was found there."""
    if not new:
        return read_ledger(path)
    try:
        # A file beside what is read has one writer.
        with file_lock(path.parent.parent / ".locks" / path.name) if lock else nullcontext():
            lines = _lines(path)
            entries = _entries(path, lines)
            count = len(entries)
            for entry in new:
                if entry.read in {known.read for known in entries}:
                    continue
                changed = entry.changed if arrived else what_changed(entry, entries)
                entry = replace(entry, changed=changed, before=sha256_bytes(lines[-1]) if lines else "")
                entries.append(entry)
                lines.append(entry.line().encode())
            if len(entries) > count:
                write_text(path, "".join(f"{line.decode()}\n" for line in lines))
            return entries
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error}): no test row is read without its entry") from None


def what_changed(entry: SplitRead, entries: Sequence[SplitRead]) -> str:
    """Return the names of the parts that differ from those of the reader's last entry.

    Of a reader that has none: the last one that shares a network's settings, such as the same experiment by another
    name; else FIRST.
    """
    if entry.run is not None:
        return "a run alone"
    if own := [earlier for earlier in entries if earlier.reader == entry.reader and earlier.run is None]:
        before, now = own[-1].parts, entry.parts
        if not before or not now:
            return NOT_KNOWN
        return ", ".join(sorted(name for name in {*before, *now} if before.get(name) != now.get(name))) or NOT_KNOWN
    networks = network_keys(entry.parts)
    if sharing := [earlier for earlier in entries if networks & network_keys(earlier.parts)]:
        return f"{FIRST} by this name, after {sharing[-1].reader} with networks of the same settings"
    return FIRST


def network_keys(parts: Mapping[str, str]) -> set[str]:
    """Return the keys of the variants among the parts of an entry."""
    return {key for name, key in parts.items() if name.startswith(VARIANT)}


def settings_key(about: Mapping[str, Any]) -> str:
    """Return the key of the settings of a job, or of a variant of a plan: without seed and machine."""
    return content_key({name: about.get(name) for name in ("model", "data", "network", "training")})


def reads_file(run_directory: Path) -> Path:
    """Return the file of a run's folder that has the reads of the test split for this run alone."""
    return run_directory / EVALUATION / LEDGER.name


def _date(now: datetime | None) -> str:
    return (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
