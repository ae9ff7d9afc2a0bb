"""A file in a package's folder is a member of its registry."""

import subprocess
import sys

import pytest

from reread.storage import errors
from reread.storage.errors import InputError, command
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


@pytest.mark.parametrize("absent", ["Settings", "build"])
def test_the_name_that_a_file_lacks_is_named(things, absent):
    (things.folder / "smaller.py").write_text(MEMBER.replace(absent, "another"))
    with pytest.raises(InputError, match=rf"^registered_things/smaller.py defines no {absent},.* thing "):
        things.module("smaller")


@pytest.fixture
def said(things, tmp_path, monkeypatch, capsys):
    """Writes a member, imports it in a command, and returns the exit code and the output on stderr."""
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    monkeypatch.setattr(errors, "OURS", (things.package,))

    def run(text):
        (things.folder / "broken.py").write_text(text)
        with pytest.raises(SystemExit) as ended:
            command(lambda: registry(things.package).module("broken") and None)()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("DEBUG = Settings(sise=1)", "TypeError: Settings.__init__() got an unexpected keyword argument 'sise'"),
        ("DEBUG = Setings()", "NameError: name 'Setings' is not defined"),
        ("from reread.storage.settings import Rang", "ImportError: cannot import name 'Rang'"),
        ("class Net:\n    size = int('a')", "line 11: ValueError: invalid literal"),
        ("from registered_things.layers import Net", "No module named 'registered_things.layers'"),
        ("import surely_absent", "the package 'surely_absent' is not installed: install it"),
    ],
)
def test_a_member_that_fails_at_its_import_is_named_with_its_line(said, line, problem):
    code, printed = said(f"{MEMBER}{line}\n")
    assert code == 2 and printed.count("\n") == 1
    assert printed.startswith("error: registered_things/broken.py, line 1") and problem in printed


def test_a_fault_that_is_not_in_the_member_is_not_hidden(said, things):
    (things.folder / "no_member.py").write_text("raise RuntimeError('imported')\n")
    (things.folder / "broken.py").write_text(f"{MEMBER}from registered_things import no_member\n")
    with pytest.raises(RuntimeError, match="imported"):
        command(lambda: things.module("broken") and None)()


def test_a_file_that_does_not_parse_is_refused_where_it_is_named_and_nowhere_else(things):
    (things.folder / "half.py").write_text(f"{MEMBER}def\n")
    assert things.available() == ["small"] and things.module("small")
    with pytest.raises(SyntaxError):
        things.module("half")


def test_a_package_s_registry_is_found_by_its_name(things):
    assert registry("registered_things") == things


def test_listing_the_optimisers_and_augmentations_imports_no_torch():
    code = (
        "import sys; from reread.storage.registry import Registry; "
        "print(Registry('reread.batches.augmentations', 'x', ('apply',)).available(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "'flip'" in done.stdout and done.stdout.strip().endswith("False")
