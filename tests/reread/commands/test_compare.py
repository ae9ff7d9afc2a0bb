"""Comparing two runs, as they lie in runs/."""

import json
from pathlib import Path

import pytest

from reread.commands.compare import compare, same_outcome
from reread.planning.runs import find_run
from reread.storage.errors import InputError
from reread.storage.files import write_json
from tests.digests import write_digests

RUN_A, RUN_B = "aaaa111122223333", "aabb111122223333"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project with two finished runs: B has another seed, depth, source file and host, and better figures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REREAD_RUNS", raising=False)
    write_run(RUN_A, seed=0, depth=10, source={"models/a.py": "0" * 64, "reread/training/loop.py": "1" * 64}, score=0.5)
    write_run(
        RUN_B, seed=1, depth=16, source={"models/b.py": "2" * 64, "reread/training/loop.py": "1" * 64}, score=0.75
    )
    splits = {"train": [0, 6], "validation": [6, 8], "test": [8, 10]}
    about = {"splits": splits, "settings": {"rows_per_class": 20}, "data_version": "3" * 64}
    write_json(tmp_path / "prepared" / "data" / "prepared.json", about)
    return tmp_path


def write_run(key, seed, depth, source, score, evaluation="one", variant="net"):
    directory = Path("runs") / key
    write_json(
        directory / "job.json",
        {
            "run_key": key,
            "variant": variant,
            "model": "net",
            "data": "dots",
            "seed": seed,
            "experiment": "trial",
            "network": {"depth": depth, "activation": "relu"},
            "training": {"learning_rate": 0.01},
            "prepared": "prepared/data",
            "key_parts": {"data": "4" * 16},
            "source": {"files": source},
            "machine": {"torch": "2.13.0", "cuda": None, "device": "AVX2"},
        },
    )
    validation = {"score": score, "loss": 1 - score, "accuracy": score}
    result = {"run_key": key, "variant": "net", "seed": seed, "best_epoch": 2, "epochs": 3, "validation": validation}
    write_json(directory / "result.json", {**result, "weights_sha256": key * 4})
    write_json(directory / "environment.json", {"torch": "2.13.0", "host": f"host-{seed}", "threads": 1})
    split = {"accuracy": score, "rows": 2, "confusion": [[1, 0], [0, 1]]}
    write_json(directory / "evaluation" / evaluation / "metrics.json", {"validation": split, "test": split})
    write_digests(directory / "evaluation" / evaluation)


def different(sections, section):
    return {row.name: (row.a, row.b) for row in sections[section] if not row.equal}


def test_each_section_names_what_differs_and_nothing_else(folder):
    sections = compare(find_run(RUN_A), find_run(RUN_B))
    assert different(sections, "parameters") == {"seed": (0, 1), "network.depth": (10, 16)}
    assert different(sections, "data") == {}
    assert different(sections, "source") == {"models/a.py": ("0" * 64, None), "models/b.py": (None, "2" * 64)}
    assert different(sections, "environment") == {"host": ("host-0", "host-1")}
    results = different(sections, "results")
    assert results["test.accuracy"] == (0.5, 0.75) and results["weights_sha256"] == (RUN_A * 4, RUN_B * 4)
    assert "best_epoch" not in results and not any("confusion" in name for name in results)
    accuracy = next(row for row in sections["results"] if row.name == "test.accuracy")
    assert accuracy.difference == 0.25
    assert {row.name: row.a for row in sections["data"]}["rows.train"] == 6


def test_equal_sources_do_not_differ_by_the_folders_of_their_files(folder):
    for key, package in ((RUN_A, ""), (RUN_B, "reread/")):
        path = folder / f"runs/{key}/job.json"
        job = json.loads(path.read_text())
        write_json(path, {**job, "source": {"digest": "5" * 64, "files": {f"{package}training/loop.py": "1" * 64}}})
    sections = compare(find_run(RUN_A), find_run(RUN_B))
    assert [row.name for row in sections["source"]] == ["reread/training/loop.py"] and sections["source"][0].equal


def test_a_run_equals_itself(folder):
    sections = compare(find_run(RUN_A), find_run(RUN_A))
    assert same_outcome(sections)
    assert not any(different(sections, section) for section in sections)


def test_metrics_are_compared_only_where_both_were_evaluated_in_the_same_way(folder):
    write_run("ccccccccccccc", 0, 10, {}, 0.5, evaluation="another")
    sections = compare(find_run(RUN_A), find_run("cc"))
    assert not any(row.name.startswith("test.") for row in sections["results"])


def test_prepared_arrays_that_are_gone_are_refused(folder):
    (folder / "prepared/data/prepared.json").unlink()
    sections = compare(find_run(RUN_A), find_run(RUN_B))
    assert any("is gone" in str(row.a) for row in sections["data"])


@pytest.mark.parametrize("name", [RUN_A, "aaa", f"runs/{RUN_A}", f"runs/{RUN_A}/"])
def test_a_run_is_found_by_its_key_its_beginning_or_its_folder(folder, name):
    assert find_run(name).key == RUN_A


@pytest.mark.parametrize(
    ("name", "told"),
    [("aa", "2 runs"), ("aaaa111122223334", f"did you mean '{RUN_A}'"), ("zz", "reread compare"), ("", "2 runs")],
)
def test_a_name_that_fits_none_or_several_is_refused(folder, name, told):
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        find_run(name)


@pytest.fixture
def here(reread, folder, monkeypatch):
    """The command in ``folder``."""
    monkeypatch.chdir(folder)
    return reread


def test_the_table_shows_differences_alone_unless_all_is_asked_for(here):
    table = here("compare", RUN_A, RUN_B)
    assert "network.depth" in table and "network.activation" not in table
    assert "+0.25" in table and RUN_A in table.splitlines()[0] and RUN_B in table.splitlines()[0]
    assert all(line == line.rstrip() for line in table.splitlines())
    assert "network.activation" in here("compare", RUN_A, RUN_B, "--all")


def test_json_has_the_same_and_nothing_else(here):
    printed = json.loads(here("compare", RUN_A, RUN_B, "--json"))
    assert printed["a"] == RUN_A
    depth = {"name": "network.depth", "a": 10, "b": 16, "difference": 6}
    assert depth in printed["sections"]["parameters"]
    assert printed["sections"]["data"] == []


def test_without_a_name_the_runs_are_listed(here):
    write_run("d" * 16, 0, 10, {}, 0.5, variant="a-variant-with-a-name-that-is-much-longer-than-a-terminal-is-wide" * 2)
    table = here("compare")
    # Each run has one line, with its whole key and name, however narrow the terminal.
    assert len(table.splitlines()) == 5
    for run in (RUN_A, RUN_B, "d" * 16):
        assert sum(run in line for line in table.splitlines()) == 1
    assert "is-wide" in table and "0.7500" in table
    listed = {run["run_key"]: run for run in json.loads(here("compare", "--json"))}
    assert listed.keys() >= {RUN_A, RUN_B} and listed[RUN_B]["validation"] == 0.75


@pytest.mark.parametrize("content", [[], {"variant": "net"}, {"run_key": RUN_A, "variant": 5}])
def test_a_job_of_other_content_is_bad_input(here, content):
    write_json(Path("runs") / RUN_A / "job.json", content)
    assert f"runs/{RUN_A}/job.json" in here("compare", RUN_A, RUN_B, code=2)


def test_a_damaged_run_is_listed_as_such_among_the_others(here):
    write_json(Path("runs") / RUN_A / "job.json", {"variant": "net"})
    write_run("c" * 16, 0, 10, {}, 0.5)
    (Path("runs") / ("c" * 16) / "result.json").write_text("{")
    lines = {line.split()[0]: line for line in here("compare").splitlines()}
    assert lines[RUN_A].split() == [RUN_A, "damaged"]
    assert "net" in lines["c" * 16] and "damaged" in lines["c" * 16] and "0.7500" in lines[RUN_B]
    listed = {run["run_key"]: run["damaged"] for run in json.loads(here("compare", "--json"))}
    assert f"runs/{RUN_A}/job.json" in listed[RUN_A] and listed[RUN_B] is None


def test_the_list_has_the_settings_in_which_runs_of_one_variant_differ(here):
    write_run("c" * 16, 0, 10, {}, 0.5, variant="other")
    lines = {line.split()[0]: line for line in here("compare").splitlines()}
    assert lines[RUN_A].endswith("depth=10") and lines[RUN_B].endswith("depth=16")
    assert "=" not in lines["c" * 16] and "settings" in lines["run"]
    listed = {run["run_key"]: run["settings"] for run in json.loads(here("compare", "--json"))}
    assert listed[RUN_A] == {"network.depth": 10} and listed["c" * 16] == {}
    # Arrays that were prepared otherwise.
    path = Path("runs") / ("d" * 16)
    write_run("d" * 16, 0, 10, {}, 0.5, variant="other")
    write_json(path / "job.json", {**json.loads((path / "job.json").read_text()), "prepared": "prepared/more"})
    write_json(Path("prepared/more/prepared.json"), {"settings": {"rows_per_class": 40}})
    assert "rows_per_class=40" in here("compare")


def test_one_name_alone_is_bad_input(here):
    assert "RUN" in here("compare", RUN_A, code=2)
