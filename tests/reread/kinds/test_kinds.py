"""The kinds of data: each entry leads to something, and importing a kind imports nothing else."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from reread import kinds
from reread.storage.errors import InputError

ROOT = Path(__file__).parents[3]
ENTRIES = [field.name for field in fields(kinds.Kind) if "Entry" in str(field.type)]


@pytest.mark.parametrize("name", kinds.available())
def test_each_entry_is_there(name):
    kind = kinds.kind(name)
    for entry in ENTRIES:
        value = getattr(kind, entry)
        assert value is None or callable(kinds.load(value)), (name, entry)
    for baseline in kind.baselines:
        assert callable(kinds.load(baseline.features)) and callable(kinds.load(baseline.fit))


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="'texts': did you mean 'text'"):
        kinds.kind("texts")


def test_an_entry_is_a_function_or_an_address():
    assert kinds.load(sorted) is sorted and kinds.load("json:dumps").__name__ == "dumps"
    assert kinds.module_of("reread.batches.text:Collator") == "reread.batches.text"
    assert kinds.module_of(kinds.load("reread.batches.text:Collator")) == "reread.batches.text"


def test_a_machine_that_trains_imports_no_preprocessing():
    code = (
        "import sys; from reread import kinds; [kinds.load(kinds.kind(name).collator) for name in kinds.available()]\n"
        "other = ('reread.preprocessing', 'reread.evaluation', 'pandas', 'sklearn')\n"
        "print([name for name in other if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_baselines_have_names_of_their_own():
    listed = [baseline.name for name in kinds.available() for baseline in kinds.kind(name).baselines]
    assert len(set(listed)) == len(listed) and set(listed) == set(kinds.baselines())
