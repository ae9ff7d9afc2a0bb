"""Warnings and refusals at the entrance: too few seeds and wrong names, without torch, Prefect or scipy."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reread.planning.entrance import read_experiment, undecidable, unset_margin
from reread.storage.errors import InputError
from reread.storage.source import ROOT


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_few_seeds_are_warned_of():
    tiny = read_experiment("tiny", None, None, ())
    (line,) = undecidable(tiny, None, [0, 1])
    assert "2 seeds decide nothing" in line and "needs 5" in line
    assert "1 seed decides nothing" in undecidable(tiny, None, [0])[0]
    (line,) = undecidable(tiny, None, list(range(4)))
    assert "equivalence" in line
    assert undecidable(tiny, None, list(range(5))) == []
    assert undecidable(tiny, ["han"], [0]) == []  # nothing is compared


def test_a_margin_that_nobody_has_set_is_noted(tmp_path, monkeypatch):
    for name in ("params.yaml", "data.manifest.json"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "experiments/tiny.yaml").read_text(encoding="utf-8")
    without = re.sub("^equivalence_margin:.*\n", "", text, flags=re.MULTILINE)
    assert without != text
    of_each = re.sub("^    metric: accuracy$", r"\g<0>\n    equivalence_margin: 0.02", without, flags=re.MULTILINE)
    line = "experiments/tiny.yaml sets no equivalence_margin: 0.01 is used"
    for content, lines in ((text, []), (without, [line]), (of_each, [])):
        Path("experiments/tiny.yaml").write_text(content, encoding="utf-8")
        assert unset_margin(read_experiment("tiny", None, None, ())) == lines
        assert unset_margin(read_experiment("tiny", ["han"], None, ()), ["han"]) == []  # nothing is compared


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("tinny", None, None, ()), "tiny"), (("tiny", ["hann"], None, ()), "'han'"), (("tiny", None, [-1], ()), "-1")],
)
def test_a_slip_is_named(arguments, named):
    with pytest.raises(InputError, match=named):
        read_experiment(*arguments)


@pytest.mark.parametrize(("metric", "named"), [("accurcy", "'accuracy'"), ("recal:0", "'recall'"), ("f1", "macro_f1")])
def test_a_metric_that_no_data_has_is_named(metric, named, tmp_path, monkeypatch):
    for name in ("params.yaml", "data.manifest.json"):
        shutil.copy2(ROOT / name, tmp_path)
    text = (ROOT / "experiments/default.yaml").read_text(encoding="utf-8")
    assert text.count("metric: accuracy") > 1
    (tmp_path / "experiments").mkdir()
    changed = text.replace("metric: accuracy", f"metric: {metric}", 1)
    (tmp_path / "experiments/default.yaml").write_text(changed, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"metric.*{named}"):
        read_experiment("default", None, None, ())


def test_nothing_slow_is_imported_for_a_slip():
    code = (
        "import sys; from reread.commands.options import plan_of\n"
        "try: plan_of('tiny', ['hann'])\n"
        "except ValueError: sys.exit(bool({'torch', 'scipy', 'sklearn', 'prefect', 'mlflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
