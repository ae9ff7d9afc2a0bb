"""Since when an experiment's file has the comparisons, margins, seeds and alpha that it has."""

import os
import subprocess

import pytest
import yaml

from reread.planning.experiment import EXPERIMENTS
from reread.planning.history import fixed, form_since
from reread.planning.resolve import make_plan

COMPARISON = {"name": "s", "claim": "Swish is better.", "treatment": "swish", "control": "relu", "metric": "accuracy"}
FIRST = {"title": "A test", "variants": {"relu": {}, "swish": {}}, "seeds": [0, 1], "comparisons": [COMPARISON]}


class Repository:
    """A git repository with one experiment, whose commits are a day apart."""

    def __init__(self, root):
        self.root, self.day = root, 0
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments, **variables):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", self.root, *who, *arguments],
            capture_output=True, text=True, check=True, env={**os.environ, **variables},
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, content, name="mine"):
        path = self.root / EXPERIMENTS / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))

    def commit(self, content=None, name="mine"):
        """Commit the experiment, and return the date of the commit."""
        if content is not None:
            self.write(content, name)
        self.day += 1
        date = f"2026-11-{self.day:02}T09:00:00+02:00"
        self.git("add", ".")
        self.git("commit", "-qm", "Any", "--allow-empty", GIT_COMMITTER_DATE=date, GIT_AUTHOR_DATE=date)
        return f"2026-11-{self.day:02}T07:00:00Z"

    def since(self, name="mine"):
        commit = form_since(name, self.root)
        return commit and commit.date


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_settings_and_words_may_change_and_what_decides_verdicts_may_not(repository):
    first = repository.commit(FIRST)
    variants = {"relu": {"training": {"learning_rate": 1}}, "swish": {}}
    repository.commit({**FIRST, "title": "Another", "variants": variants})
    reworded = {**COMPARISON, "claim": "Swish in place of ReLU raises accuracy.", "source": "A paper"}
    repository.commit({**FIRST, "comparisons": [reworded]})
    # The same comparison as a group.
    group = {"treatment": "swish", "metric": "accuracy", "claim": "c", "controls": {"relu": {}}}
    repository.commit({**FIRST, "comparisons": [group]})
    repository.commit()
    assert repository.since() == first
    assert form_since("mine", repository.root).sha == repository.git("rev-list", "--max-parents=0", "HEAD")


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": [0, 1, 2]},
        {"alpha": 0.1},
        {"equivalence_margin": 0.02},
        {"second_look": 4},
        {"comparisons": [{**COMPARISON, "equivalence_margin": 0.01}]},
        {"comparisons": [{**COMPARISON, "treatment": "relu", "control": "swish"}]},
        {"comparisons": [COMPARISON, {**COMPARISON, "name": "t", "metric": "loss"}]},
    ],
)
def test_a_change_of_what_decides_verdicts_is_dated_and_so_is_its_return(repository, change):
    repository.commit(FIRST)
    changed = repository.commit({**FIRST, **change})
    assert repository.since() == changed
    back = repository.commit(FIRST)
    repository.commit({**FIRST, "title": "Another"})
    assert repository.since() == back


def test_comparisons_of_another_experiment_change_with_it(repository):
    repository.commit(FIRST, "other")
    own = repository.commit({**FIRST, "comparisons": "other"})
    assert repository.since() == own
    assert repository.since("other") == "2026-11-01T07:00:00Z"
    changed = repository.commit({**FIRST, "comparisons": [{**COMPARISON, "metric": "loss"}]}, "other")
    assert repository.since() == repository.since("other") == changed
    fewer = repository.commit({**FIRST, "variants": {"relu": {}}, "comparisons": "other"})
    assert repository.since() == fewer


def test_an_older_file_that_is_no_experiment_is_another_form(repository):
    for broken in ("comparisons: [", "a list", "comparisons: [{treatment: swish}]"):
        repository.commit(broken)
    assert repository.commit(FIRST) == repository.since()


def test_what_is_not_committed_and_a_history_that_is_not_whole_are_not_known(repository, tmp_path_factory):
    repository.write(FIRST)
    assert repository.since() is None
    repository.commit()
    repository.commit({**FIRST, "title": "Another"})
    assert repository.since() == "2026-11-01T07:00:00Z"
    repository.write({**FIRST, "seeds": [7]})
    assert repository.since() is None
    assert repository.since("missing") is None
    shallow = tmp_path_factory.mktemp("shallow") / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository.root}", shallow], check=True)
    assert form_since("mine", shallow) is None
    plain = tmp_path_factory.mktemp("plain")
    (plain / EXPERIMENTS).mkdir()
    (plain / EXPERIMENTS / "mine.yaml").write_text(yaml.safe_dump(FIRST))
    assert form_since("mine", plain) is None


def test_a_selection_of_an_experiment_has_no_commit():
    assert fixed(make_plan("default", seeds=[10])) is None
