"""The ledger of test reads: which experiments evaluated a test split, with which settings, and when.

results/test-reads.jsonl is committed, one JSON object per line:

    date        UTC, to the second
    experiment  its name
    plan        the key of what decides the comparisons: settings, seeds, comparisons and data, without the machine
    data        the data sets whose test split was read
    changed     what differs from the experiment's last entry ("first read" for its first)
    parts       a short key of each named part of the plan, from which ``changed`` is found
    run         of a run that `python -m evaluation --test` evaluated alone: its key; ``plan`` is then the key of its
                settings. The entry is in the run's folder as well, evaluation/test-reads.jsonl, and comes with it from
                a training machine to the project's ledger.

A test split that steered a choice no longer measures unseen data (Dwork et al. 2015, "The reusable holdout"), so a
verdict after the first read of changed settings is marked.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.files import content_key, write_text
from storage.locks import file_lock
from storage.run_folder import EVALUATION, RunFolder

LEDGER = Path("results/test-reads.jsonl")
FIRST = "first read"


@dataclass(frozen=True)
class SplitRead:
    """One entry: the first evaluation of a test split with one plan."""

    date: str
    experiment: str
    plan: str
    data: list[str]
    changed: str
    parts: dict[str, str] = field(default_factory=dict)
    run: str | None = None

    def line(self) -> str:
        """Return the entry as a line of the ledger; ``run`` only where there is one."""
        values = {name: value for name, value in asdict(self).items() if name != "run" or value is not None}
        return json.dumps(values, ensure_ascii=False) + "\n"

    def check(self) -> None:
        """Raise TypeError where a value is of another type than one that ``record_read`` writes."""
        if not (isinstance(self.data, list) and isinstance(self.parts, dict)):
            raise TypeError("'data' is no list or 'parts' no object")
        texts = (self.date, self.experiment, self.plan, self.changed, *self.data, *self.parts.values())
        if not all(isinstance(one, str) for one in texts):
            raise TypeError("a value is no text")


def read_ledger(path: Path = LEDGER) -> list[SplitRead]:
    """Return all entries in order; none where the file is missing. InputError names a line that cannot be read."""
    if not path.is_file():
        return []
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = SplitRead(**json.loads(line))
            entry.check()
            entries.append(entry)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is no ledger entry ({error}): restore the file from git") from None
    return entries


def record_read(
    experiment: str,
    plan: str,
    data: Sequence[str],
    parts: Mapping[str, Any],
    path: Path = LEDGER,
    now: datetime | None = None,
) -> list[SplitRead]:
    """Append an entry unless the experiment has one with this plan, and return the whole ledger.

    plan: the key of ``parts``, equal for equal settings, seeds, comparisons and data on any machine. parts: JSON values
    by name ("variant han", "seeds"); the entry names those that differ from the experiment's last entry.
    """
    with file_lock(path.parent.parent / ".locks" / path.name):
        entries = read_ledger(path)
        before = [entry for entry in entries if entry.experiment == experiment and entry.run is None]
        if any(entry.plan == plan for entry in before):
            return entries
        keys = {name: content_key(value)[:12] for name, value in parts.items()}
        changed = what_changed(before[-1].parts, keys) if before else FIRST
        entries.append(SplitRead(_date(now), experiment, plan, sorted(data), changed, keys))
        write_text(path, "".join(entry.line() for entry in entries))
        return entries


def settings_key(about: Mapping[str, Any]) -> str:
    """Return the key of the settings of a job, or of a variant of a plan: without seed and machine."""
    return content_key({name: about.get(name) for name in ("model", "data", "network", "training")})


def record_run_read(run: RunFolder, path: Path = LEDGER, now: datetime | None = None) -> None:
    """Record that the test split is read to evaluate one run: in its folder and, where there is one, in the ledger."""
    job = run.job
    changed = f"run {run.key} alone ({job.get('variant', '')}, seed {job.get('seed', '')})"
    data = [job["data"]] if "data" in job else []
    entry = SplitRead(_date(now), job.get("experiment", ""), settings_key(job), data, changed, run=run.key)
    if not reads_file(run.directory).is_file():
        write_text(reads_file(run.directory), entry.line())
    if path.parent.is_dir():
        add_reads([entry], path)


def reads_file(run_directory: Path) -> Path:
    """Return the file of a run's folder that has the reads of the test split for this run alone."""
    return run_directory / EVALUATION / LEDGER.name


def add_reads(found: Iterable[SplitRead], path: Path = LEDGER) -> None:
    """Append the entries of runs to the ledger, one for each experiment and settings."""
    new = {(entry.experiment, entry.plan): entry for entry in found}
    if not new:
        return
    with file_lock(path.parent.parent / ".locks" / path.name):
        entries = read_ledger(path)
        known = {(entry.experiment, entry.plan) for entry in entries}
        if added := [entry for key, entry in new.items() if key not in known]:
            write_text(path, "".join(entry.line() for entry in [*entries, *added]))


def _date(now: datetime | None) -> str:
    return (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the names of the parts that differ, or "not known" where an entry has none."""
    if not before or not now:
        return "not known"
    return ", ".join(sorted(name for name in {*before, *now} if before.get(name) != now.get(name))) or "not known"


def reads_of(entries: Sequence[SplitRead], data: Sequence[str]) -> list[SplitRead]:
    """Return the entries that read the test split of one of the data sets."""
    return [entry for entry in entries if set(entry.data) & set(data)]


def earlier_reads(
    entries: Sequence[SplitRead], experiment: str, plan: str, data: str, settings: Collection[str] = ()
) -> int:
    """Return how often an experiment had read a data set's test split with other settings before this plan.

    settings: of each variant of the plan (``settings_key``): reads for one run with these are none of other settings.
    """
    count = 0
    for entry in entries:
        if entry.experiment == experiment and entry.plan == plan:
            break
        count += entry.experiment == experiment and data in entry.data and entry.plan not in settings
    return count
