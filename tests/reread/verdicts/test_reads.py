"""How often a test split had been read before a verdict, and whether all was fixed before its reads."""

from datetime import UTC, datetime, timedelta

import pytest

from reread.storage.git import Commit
from reread.storage.ledger import open_test_split, read_ledger, settings_key
from reread.verdicts.reads import EarlierReads, Fixed, before, earlier_reads, reads_of, standing, variant_key

START = datetime(2026, 11, 21, 7, tzinfo=UTC)


def variant(rate, data="imdb"):
    parts = {"preprocessing": {}, "network": {"hidden_size": 50}, "training": {"learning_rate": rate}}
    return {"name": "any", "model": "han", "data": data, "prepared_key": "ffff", **parts}


def plan(name, key, *rates):
    variants = {f"han-{rate}": variant(rate) for rate in rates}
    return {"name": name, "key": key, "variants": variants, "data": {"imdb": {"version": "2"}}}


@pytest.fixture
def write(tmp_path):
    """Write the read of a plan so many hours after START, with a version of the data, and return the ledger."""

    def write(about, hours, version="2", **more):
        names = ("model", "data", "preprocessing", "network", "training")
        parts = {
            f"variant {name}": {section: it[section] for section in names} for name, it in about["variants"].items()
        }
        path, now = tmp_path / "results" / "reads.jsonl", START + timedelta(hours=hours)
        data = {"imdb": version}
        with open_test_split(about["name"], about["key"], data, parts, path=path, now=now, **more) as entries:
            return entries

    return write


def test_the_key_of_a_variant_is_that_of_its_entry(write):
    (entry,) = write(plan("imdb", "aaaa", 0.1), 0)
    assert entry.parts == {"variant han-0.1": variant_key(variant(0.1))}


def test_reads_count_by_data_set_and_version_whoever_read(write):
    own = plan("imdb", "mine", 0.1, 0.2)
    write(plan("imdb", "aaaa", 0.3), 0)
    write(plan("other", "bbbb", 0.4), 1)
    write(plan("third", "cccc", 0.1), 2)
    write(plan("imdb", "dddd", 0.3), 3, version="1")
    entries = write(own, 4)
    write(plan("later", "eeee", 0.1), 5)
    # By its name twice, one of them of another version, and once with the settings of han-0.1.
    for name, related in (("han-0.1", 3), ("han-0.2", 2)):
        assert earlier_reads(entries, own, "imdb", [name]) == EarlierReads(earlier=3, other=1, related=related)
    # By another name it has the same reads but for those by name; and so has a new plan, after all.
    renamed = {**own, "name": "renamed"}
    assert earlier_reads(entries, renamed, "imdb", ["han-0.1"]) == EarlierReads(3, 1, 1)
    assert earlier_reads(entries, {**renamed, "key": "new"}, "imdb", ["han-0.2"]) == EarlierReads(4, 1, 1)


def test_entries_that_arrive_late_count_by_their_dates(write):
    own = plan("imdb", "mine", 0.1)
    assert earlier_reads(write(own, 4), own, "imdb", ["han-0.1"]) == EarlierReads()
    entries = write(plan("other", "bbbb", 0.4), 1)
    assert [entry.plan for entry in entries] == ["mine", "bbbb"]
    assert earlier_reads(entries, own, "imdb", ["han-0.1"]) == EarlierReads(earlier=1)
    assert [entry.plan for entry in reads_of(entries, ["imdb"])] == ["bbbb", "mine"]
    assert not reads_of(entries, ["digits"]) and [entry.plan for entry in before(entries, "mine")] == ["bbbb"]


def test_a_run_that_was_read_alone_counts_where_the_plan_has_other_settings(write):
    write({**plan("imdb", settings_key(variant(0.1)), 0.1), "variants": {}}, 0, run="0123")
    for rate, expected in ((0.1, 0), (0.2, 1)):
        own = plan("imdb", f"mine {rate}", rate)
        entries = write(own, 1)
        assert earlier_reads(entries[:1], own, "imdb", [f"han-{rate}"]).earlier == expected


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (EarlierReads(), ""),
        (EarlierReads(earlier=1), "with other settings: once; none of these reads was by"),
        (EarlierReads(earlier=3, related=1), "with other settings: 3 times; 1 of these reads was by"),
        (
            EarlierReads(earlier=1, other=2, related=2),
            "once and in other versions of the data: 2 times; 2 of",
        ),
        (EarlierReads(other=1), "before in other versions of the data: once; none"),
    ],
)
def test_a_verdict_says_how_often_its_split_was_read(reads, expected):
    assert expected in reads.sentence and bool(expected) == bool(reads.sentence)


def commit(hours):
    return Commit("abcdef0123", (START + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ"))


def test_all_was_fixed_before_the_runs_only_where_no_read_is_older(write):
    own = plan("imdb", "mine", 0.1)
    write(plan("other", "aaaa", 0.3), 0)
    write(plan("copy", "bbbb", 0.1), 2)
    write(plan("imdb", "cccc", 0.3), 4)
    entries = write(own, 6)
    expected = {
        1: "Fixed before the runs",
        3: "Fixed after 1 read of its networks by another experiment",
        5: "Changed after 1 read of the test split: comparisons, margins, seeds, alpha or the rule",
        7: "Changed after 2 reads of the test split: comparisons, margins, seeds, alpha or the rule",
    }
    for hours, words in expected.items():
        assert standing(Fixed(commit(hours), commit(0)), entries, own) == words
        # The rule is fixed too.
        assert standing(Fixed(commit(0), commit(hours)), entries, own) == words
    assert standing(None, entries, own) == "Not known whether fixed before the runs"
    assert standing(Fixed(commit(0), commit(0)), read_ledger(), {**own, "data": {}}) == "Fixed before the runs"
