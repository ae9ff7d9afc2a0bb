"""The commit of the source, and what counts as a change of it."""

import subprocess
from pathlib import Path

import pytest

from reread.storage import git


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name in ("data.manifest.json", "results/default/report.json", "models/han.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "All")):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(git, "ROOT", tmp_path)
    return tmp_path


def test_a_line_keeps_its_commit_when_its_file_moves_and_when_others_change(repository):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")

    def commit():
        for command in (("add", "-A"), (*who, "commit", "-qm", "Any")):
            subprocess.run(["git", "-C", repository, *command], check=True)
        return git.checkout()[0]

    body = "".join(f"line {number}\n" for number in range(20))
    (repository / "rule.py").write_text(f"VERSION = 1\n{body}")
    commit()
    (repository / "rule.py").write_text(f"VERSION = 2\n{body}")
    second = commit()
    (repository / "room").mkdir()
    (repository / "rule.py").rename(repository / "room/rule.py")
    commit()
    (repository / "room/rule.py").write_text(f"VERSION = 2\n{body}another\n")
    commit()
    commits = git.commits(repository, [Path("room/rule.py")], "^VERSION = ")
    assert commits[0].sha == second and len(commits) == 2


def test_no_checkout_outside_of_git(tmp_path, monkeypatch):
    monkeypatch.setattr(git, "ROOT", tmp_path)
    assert git.checkout() is None


@pytest.mark.parametrize("name", ["data.manifest.json", "results/default/report.json", "notes.txt"])
def test_data_results_and_untracked_files_are_no_change_of_the_source(repository, name):
    (repository / name).write_text("changed")
    head = (repository / ".git" / "refs" / "heads").iterdir()
    assert git.checkout() == (next(head).read_text().strip(), False)


def test_an_edit_of_the_source_is_a_change(repository):
    (repository / "models/han.py").write_text("changed")
    assert git.checkout()[1] is True
