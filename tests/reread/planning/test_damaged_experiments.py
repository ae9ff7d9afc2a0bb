"""Experiments with a flipped bit, a wrong name or a wrong value: each is read or refused in one line."""

import random
import shutil

import pytest
import yaml

from reread.planning.entrance import read_experiment
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError
from reread.storage.source import ROOT

EXPERIMENTS = sorted(path.stem for path in (ROOT / "experiments").glob("*.yaml"))
FLIPS = 8
VALUES = (None, True, -1, 1.5, float("nan"), "", "x", [], ["x"], {}, {"x": 1}, [{}], {5: 6}, {"name": None}, [[1]])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "experiments", "experiments")
    for name in ("params.yaml", "data.manifest.json"):
        shutil.copy(ROOT / name, name)
    return tmp_path


def refused(read) -> str:
    """Return the line by which something is refused; nothing where it is read. Any other error fails the test."""
    line = ""
    try:
        read()
    except InputError as error:
        line = str(error)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_flipped_bit(folder, name):
    path, generator = folder / "experiments" / f"{name}.yaml", random.Random(name)
    content = path.read_bytes()
    for _ in range(FLIPS):
        changed = bytearray(content)
        changed[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        refused(lambda: read_experiment(name, None, None, ()))


@pytest.mark.parametrize("name", ["tiny", "search", "newsgroups20-tuning"])
def test_a_value_of_another_type_anywhere(folder, name):
    path, generator = folder / "experiments" / f"{name}.yaml", random.Random(name)
    whole = yaml.safe_load(path.read_text())
    for place in places(whole):
        path.write_text(yaml.safe_dump(with_value(whole, place, generator.choice(VALUES)), sort_keys=False))
        refused(lambda: make_plan(name))


def places(value, place=()):
    """Yield the place of each value in a YAML file, but the file's own."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*place, key)
        yield from places(child, (*place, key))


def with_value(value, place, new):
    if not place:
        return new
    changed = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    changed[place[0]] = with_value(changed[place[0]], place[1:], new)
    return changed if isinstance(value, dict) else list(changed.values())


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("- name: hierarchy", "- nme: hierarchy", "comparisons.0"),
        ("source: Ramachandran", "sorce: Ramachandran", "comparisons.1"),
    ],
)
def test_a_wrong_name_in_a_comparison_is_named_with_the_right_one(folder, old, new, place):
    path = folder / "experiments/tiny.yaml"
    path.write_text(path.read_text().replace(old, new))
    line = refused(lambda: read_experiment("tiny", None, None, ()))
    right, wrong = (text.split(": ")[0].removeprefix("- ") for text in (old, new))
    assert f"'{right}'" in line and f"'{wrong}'" in line and place in line


@pytest.mark.parametrize("log", [{"x": 1}, "yes", 1])
def test_a_scale_of_a_space_is_true_or_false(folder, log):
    path = folder / "experiments/search.yaml"
    whole = yaml.safe_load(path.read_text())
    whole["search"]["space"]["training"]["learning_rate"] = {"low": 0.01, "high": 0.1, "log": log}
    path.write_text(yaml.safe_dump(whole))
    assert "learning_rate.log" in refused(lambda: make_plan("search"))
