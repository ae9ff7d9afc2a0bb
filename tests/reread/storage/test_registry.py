"""A file in a package's folder is a member of its registry."""

import subprocess
import sys

import pytest

from reread.storage.errors import InputError
from reread.storage.registry import Registry, registry
from reread.storage.source import ROOT

MEMBER = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Settings:
    size: int = 3

def build(settings):
    return settings.size
"""


@pytest.fixture
def things(tmp_path, monkeypatch):
    """A registry over a package that the test writes."""
    monkeypatch.setattr("reread.storage.registry.ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "registered_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from reread.storage.registry import Registry\nREGISTRY = Registry('registered_things', 'thing')\n"
    )
    (package / "small.py").write_text(MEMBER)
    (package / "no_member.py").write_text("raise RuntimeError('imported')\n")
    yield Registry("registered_things", "thing")
    for name in [name for name in sys.modules if name.startswith("registered_things")]:
        del sys.modules[name]


def test_a_new_file_is_a_member_and_others_are_not_imported(things):
    assert things.available() == ["small"]
    (things.folder / "large.py").write_text(MEMBER.replace("3", "30"))
    (things.folder / "broken.py").write_text("Settings = build = None\nraise RuntimeError('imported')\n")
    assert things.available() == ["broken", "large", "small"]
    module, settings = things.resolve({"name": "large", "size": 31})
    assert module.build(settings) == 31 and things.resolve({"name": "large"})[1].size == 30


def test_an_unknown_member_is_named_with_the_nearest_one(things):
    with pytest.raises(InputError, match="thing 'smal'.*'small'"):
        things.module("smal")
    with pytest.raises(InputError, match="'length'"):
        things.resolve({"name": "small", "length": 1})


def test_a_package_s_registry_is_found_by_its_name(things):
    assert registry("registered_things") == things


def test_listing_the_optimisers_and_augmentations_imports_no_torch():
    code = (
        "import sys; from reread.storage.registry import Registry; "
        "print(Registry('reread.batches.augmentations', 'x', ('apply',)).available(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "'flip'" in done.stdout and done.stdout.strip().endswith("False")
