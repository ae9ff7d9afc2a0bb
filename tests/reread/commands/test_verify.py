"""reread verify: every published verdict is what the rule gives, and a changed value is found."""

import json
import shutil
from pathlib import Path

import pytest

from reread.storage.source import ROOT
from tests.conftest import run_reread


def verify(*folders: Path | str, code: int = 0) -> str:
    done = run_reread("verify", *folders)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_all_published_verdicts_are_those_of_the_rule():
    results = ROOT / "results"
    studies = [path.parent for path in sorted((results / "studies").rglob("results.json"))]
    judged = [
        path.parent for path in sorted(results.glob("*/verdicts.json")) if json.loads(path.read_text())["verdicts"]
    ]
    said = verify(*sorted(results.iterdir()), *studies).splitlines()
    lines = [line for line in said if not line.startswith("  note: ")]
    assert all(line.endswith("all values agree") for line in lines)
    assert {Path(line.partition(":")[0]) for line in lines} >= set(judged)


@pytest.fixture
def capsules(tmp_path):
    return Path(shutil.copytree(ROOT / "results/capsules", tmp_path / "capsules"))


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_score_that_was_changed_everywhere_is_found_by_the_items(capsules):
    """The score of one seed in verdicts.json and metrics.json alike: only the predictions tell."""

    def in_verdicts(content):
        for verdict in content["verdicts"]:
            for side in ("treatment", "control"):
                if verdict[side] == "capsules":
                    verdict["scores"][side][0] += 0.001

    def in_metrics(content):
        seeds = content["variants"]["capsules"]["seeds"]
        seeds[min(seeds)]["test"]["accuracy"] += 0.001

    edit(capsules / "verdicts.json", in_verdicts)
    edit(capsules / "metrics.json", in_metrics)
    said = verify(capsules, code=1)
    assert "routing: scores.treatment[0] is published as" in said


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("verdicts.json", lambda all_: all_["verdicts"][0].update(verdict="supported"), "routing: verdict is"),
        ("verdicts.json", lambda all_: all_["verdicts"][0]["interval"].update(low=0.1), "routing: interval.low is"),
        ("verdicts.json", lambda all_: all_["verdicts"].pop(), "it is in plan.json alone"),
        ("plan.json", lambda all_: all_.update(equivalence_margin=0.1), "routing: equivalence_margin is"),
        ("summary.json", lambda all_: all_["verdict"].update(routing="supported"), "summary.json: verdict.routing"),
        ("summary.json", lambda all_: all_["verdict"].pop("routing"), "summary.json: verdict.routing"),
    ],
)  # fmt: skip
def test_a_changed_value_is_named_and_ends_with_code_1(capsules, file, change, expected):
    edit(capsules / file, change)
    assert expected in verify(capsules, code=1)


def test_a_caution_that_the_tuning_beside_it_does_not_give_any_more_is_a_note(tmp_path):
    for name in ("chestxray", "chestxray-tuning"):
        shutil.copytree(ROOT / "results" / name, tmp_path / name)
    assert "note" not in verify(tmp_path / "chestxray")

    def tried(plan):
        trials = [trial for name, trial in plan["variants"].items() if name.startswith("small-swish")]
        lowest = min(trials, key=lambda trial: trial["training"]["learning_rate"])
        lowest["training"]["learning_rate"] = 0.01

    edit(tmp_path / "chestxray-tuning/plan.json", tried)
    first, note = verify(tmp_path / "chestxray").splitlines()
    caution = "small-swish has the highest training.learning_rate that its tuning tried, 0.003."
    assert first.endswith("all values agree") and note.startswith("  note: ") and note.endswith(caution)
    shutil.rmtree(tmp_path / "chestxray-tuning")
    assert "note" not in verify(tmp_path / "chestxray")


def test_what_is_no_folder_of_results_is_one_line(tmp_path):
    assert "there is no folder" in verify(tmp_path / "nothing", code=2)
    assert "no folder has verdicts.json or results.json" in verify(tmp_path, code=2)
    old = tmp_path / "old"
    old.mkdir()
    (old / "verdicts.json").write_text(json.dumps({"verdicts": [{"name": "a"}]}))
    said = verify(old, code=2)
    assert "older rule" in said and len(said.strip().splitlines()) == 1


def test_earlier_reads_are_counted_again_and_written(tmp_path):
    folder = Path(shutil.copytree(ROOT / "results/lars", tmp_path / "lars"))
    published = (folder / "verdicts.json").read_bytes()

    def forget(content):
        for verdict in content["verdicts"]:
            assert verdict["earlier_reads"] >= 5 and "read before with other settings" in verdict["sentence"]
            verdict.update(earlier_reads=0, related_reads=0)

    edit(folder / "verdicts.json", forget)
    assert "earlier_reads is published as 0, and the rule gives" in verify(folder, code=1)
    assert "values differ" in verify("--write", folder)
    assert (folder / "verdicts.json").read_bytes() == published
    assert "all values agree" in verify(folder)


def test_a_word_is_written_wherever_it_is_shown(capsules):
    """verdicts.json as an older rule judged it, with the table, the chart and the summary of its words."""
    files = ("verdicts.json", "summary.json", "differences.csv")
    published = {name: (capsules / name).read_bytes() for name in files}
    word = json.loads(published["verdicts.json"])["verdicts"][0]["verdict"]
    edit(capsules / "verdicts.json", lambda all_: all_["verdicts"][0].update(verdict="refuted"))
    edit(capsules / "summary.json", lambda all_: all_["verdict"].update(routing="refuted"))
    table = published["differences.csv"].decode()
    (capsules / "differences.csv").write_text(table.replace(f",accuracy,{word},", ",accuracy,refuted,", 1))
    (capsules / "differences.png").unlink()
    said = verify("--write", capsules)
    assert f"routing: verdict is published as 'refuted', and the rule gives '{word}'" in said
    assert {name: (capsules / name).read_bytes() for name in files} == published
    assert (capsules / "differences.png").is_file() and "all values agree" in verify(capsules)
    (capsules / "differences.csv").write_text(table.replace(f",accuracy,{word},", ",accuracy,refuted,"))
    assert "differences.csv: verdict.routing is published as 'refuted'" in verify(capsules, code=1)


def test_claims_of_a_study_are_written_too(tmp_path):
    shutil.copytree(ROOT / "results/quantiles-docstrings", tmp_path / "quantiles-docstrings")
    folder = Path(shutil.copytree(ROOT / "results/studies/quantiles/docstrings", tmp_path / "studies/docstrings"))
    published = json.loads((folder / "results.json").read_text())
    edit(folder / "results.json", lambda study: study["claims"][0]["measured"].update(other_version_reads=0, mean=0.5))
    assert "mean is published as 0.5" in verify("--write", folder)
    written = json.loads((folder / "results.json").read_text())
    # What is computed again has twelve digits.
    mean = published["claims"][0]["measured"]["mean"]
    assert written["claims"][0]["measured"].pop("mean") == pytest.approx(mean, rel=1e-11)
    del published["claims"][0]["measured"]["mean"]
    assert written == published


@pytest.fixture
def small(tmp_path):
    return Path(shutil.copytree(ROOT / "results/default", tmp_path / "small"))


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed"])
@pytest.mark.parametrize(
    "file", ["verdicts.json", "metrics.json", "plan.json", "summary.json", "runs.json", "items.npz", "files.json.xz"]
)
def test_a_damaged_file_is_named_and_to_be_restored_from_git(small, file, damage):
    content = (small / file).read_bytes()
    middle = len(content) // 2
    changed = {"cut": content[:middle], "emptied": b"", "changed": content[:middle] + b"\xff" + content[middle + 1 :]}
    (small / file).write_bytes(changed[damage])
    said = verify(small, code=2)
    assert (
        said.startswith(f"error: {small / file} ") and said.endswith("restore it from git\n") and said.count("\n") == 1
    )


@pytest.mark.parametrize("content", [b"", b"\xff", b"name\nswish\n"])
def test_a_damaged_table_of_differences_is_found(small, content):
    (small / "differences.csv").write_bytes(content)
    assert "differences.csv" in verify(small, code=2 if content else 1)


@pytest.mark.parametrize("file", ["items.npz", "metrics.json", "plan.json"])
def test_a_file_that_is_gone_is_named(small, file):
    (small / file).unlink()
    said = verify(small, code=2)
    assert f"{small / file} is missing" in said and "restore it from git" in said


def test_an_entry_that_is_gone_is_one_line(small):
    edit(small / "plan.json", lambda plan: plan.pop("equivalence_margin"))
    said = verify(small, code=2)
    assert f"{small} " in said and "equivalence_margin" in said and "from git" in said and said.count("\n") == 1
