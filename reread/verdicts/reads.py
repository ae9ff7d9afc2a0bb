"""Count how often a test split had been read before a verdict.

An earlier read is an entry of the ledger (reread/storage/ledger.py) with another plan, older than the first entry with
the verdict's own plan, whoever read: reads count by data set and version, and an experiment by another name has the
same.

    earlier    reads of the data set, in the version that the verdict is of
    other      reads of other versions of the data set, whose test rows may be the same
    related    those of both by the same experiment, or by a plan that has one of the compared networks' settings

A run that was read alone is none of these where the plan has its settings.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reread.storage.files import content_key
from reread.storage.git import Commit
from reread.storage.ledger import SHORT, SplitRead, network_keys, settings_key

# What the key of a variant in a plan is made of, as reread.planning.plan.Plan.key_parts has it.
SETTINGS = ("model", "data", "preprocessing", "network", "training")


@dataclass(frozen=True)
class EarlierReads:
    """How often a test split had been read before with other settings.

    earlier: in this version of the data; other: in other versions; related: those of them by the same experiment, or
    with its networks, None where no ledger knows it.
    """

    earlier: int = 0
    other: int = 0
    related: int | None = 0

    @property
    def sentence(self) -> str:
        """The mark of a verdict; "" where there was no read."""
        if not self.earlier + self.other:
            return ""
        here = f"with other settings: {times(self.earlier)}" if self.earlier else ""
        there = f"in other versions of the data: {times(self.other)}" if self.other else ""
        sentence = f"The test split had been read before {' and '.join(filter(None, (here, there)))}"
        if self.related is None:
            return f"{sentence}."
        related = f"{self.related or 'none'} of these reads {'were' if self.related > 1 else 'was'}"
        return f"{sentence}; {related} by this experiment or with its networks."


NO_READS = EarlierReads()


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def variant_key(variant: Mapping[str, Any]) -> str:
    """Return the key that a plan's entry has of a variant."""
    return content_key({name: variant.get(name) for name in SETTINGS})[:SHORT]


def earlier_reads(
    entries: Sequence[SplitRead], plan: Mapping[str, Any], data: str, networks: Collection[str]
) -> EarlierReads:
    """Count the reads before a comparison of ``plan`` (plan.json: name, key, variants, data), on one of its data sets.

    networks: the compared variants. A plan that has no entry yet comes after all.
    """
    settings = {settings_key(variant) for variant in plan["variants"].values()}
    compared = {variant_key(plan["variants"][name]) for name in networks}
    version = plan["data"][data]["version"]
    earlier = other = related = 0
    for entry in before(entries, plan["key"]):
        if data not in entry.data or entry.plan in settings:
            continue
        same = entry.data[data] == version
        earlier, other = earlier + same, other + (not same)
        related += entry.reader == plan["name"] or bool(compared & network_keys(entry.parts))
    return EarlierReads(earlier, other, related)


def before(entries: Sequence[SplitRead], plan: str) -> list[SplitRead]:
    """Return the entries that are older than the first one with a plan, by date; of one date, in their order."""
    ordered = sorted(entries, key=lambda entry: entry.date)
    first = next((place for place, entry in enumerate(ordered) if entry.plan == plan), len(ordered))
    return ordered[:first]


def reads_of(entries: Sequence[SplitRead], data: Collection[str]) -> list[SplitRead]:
    """Return the entries that read the test split of one of the data sets, by date."""
    return sorted((entry for entry in entries if set(entry.data) & set(data)), key=lambda entry: entry.date)


@dataclass(frozen=True)
class Fixed:
    """The commits that fixed an experiment's comparisons, margins, seeds and alpha, and the version of the rule."""

    form: Commit
    rule: Commit

    @property
    def date(self) -> str:
        """From when on nothing was changed."""
        return max(self.form.date, self.rule.date)


def standing(fixed: Fixed | None, entries: Sequence[SplitRead], plan: Mapping[str, Any]) -> str:
    """Return in words whether the reads of a plan's test splits came after all was fixed."""
    if fixed is None:
        return "Not known whether fixed before the runs"
    compared = {variant_key(variant) for variant in plan["variants"].values()}
    older = [entry for entry in reads_of(entries, plan["data"]) if entry.date < fixed.date]
    own = [entry for entry in older if entry.reader == plan["name"] or entry.plan == plan["key"]]
    if own:
        return f"Changed after {counted(len(own))} of the test split: comparisons, margins, seeds, alpha or the rule"
    if shared := [entry for entry in older if compared & network_keys(entry.parts)]:
        return f"Fixed after {counted(len(shared))} of its networks by another experiment"
    return "Fixed before the runs"


def counted(reads: int) -> str:
    return "1 read" if reads == 1 else f"{reads} reads"
