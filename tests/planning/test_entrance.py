"""What is said at the entrance: too few seeds and wrong names, without torch, Prefect or scipy."""

import subprocess
import sys

import pytest

from planning.entrance import read_experiment, undecidable
from storage.errors import InputError
from storage.source import ROOT


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_few_seeds_are_warned_of():
    tiny = read_experiment("tiny", None, None, ())
    (line,) = undecidable(tiny, None, [0, 1])
    assert "2 seeds decide nothing" in line and "needs 7" in line
    (line,) = undecidable(tiny, None, list(range(6)))
    assert "equivalence" in line
    assert undecidable(tiny, None, list(range(7))) == []
    assert undecidable(tiny, ["han"], [0]) == []  # nothing is compared


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("tinny", None, None, ()), "tiny"), (("tiny", ["hann"], None, ()), "'han'"), (("tiny", None, [-1], ()), "-1")],
)
def test_a_slip_is_named(arguments, named):
    with pytest.raises(InputError, match=named):
        read_experiment(*arguments)


def test_nothing_slow_is_imported_for_a_slip():
    code = (
        "import sys; from commands.options import plan_of\n"
        "try: plan_of('tiny', ['hann'])\n"
        "except ValueError: sys.exit(bool({'torch', 'scipy', 'sklearn', 'prefect', 'mlflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
