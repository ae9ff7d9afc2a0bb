"""The examples: their runs in this process, a small run of a claim in another folder, and published verdicts."""

import csv
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.conftest import run_reread


def run_example(example: ModuleType, *options: object) -> None:
    """Run an example in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [example.__file__, *map(str, options)])
        example.main()


def items_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the items.csv that an example has written into ``folder``."""
    with open(folder / "items.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refused(capsys: pytest.CaptureFixture[str], example: ModuleType, *options: object) -> str:
    """Run an example whose command line is wrong, and return what it says."""
    with pytest.raises(SystemExit) as stopped:
        run_example(example, *options)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def run_small_claim(path: Path, folder: Path, options: str, *claims: str) -> dict[str, Any]:
    """Run some of an example's claims in ``folder`` by `reread claim`; return the document that it prints.

    options: what each arm has more, which has two seeds; claims: by name.
    """
    (folder / "examples").mkdir()
    shutil.copy(path.with_suffix(".py"), folder / "examples")
    content = yaml.safe_load(path.read_text())
    judged = [claim for claim in content["claims"] if claim["name"] in claims]
    arms = {claim[side] for claim in judged for side in ("treatment", "control")}
    runs = {name: {**arm, "run": f"{arm['run']} {options}"} for name, arm in content["arms"].items() if name in arms}
    content |= {"seeds": 2, "lock": [], "claims": judged, "arms": runs}
    (folder / "examples" / path.name).write_text(yaml.safe_dump(content))
    done = run_reread("claim", f"examples/{path.name}", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_scores(scores: Path) -> None:
    """Check that the published verdict.json beside the scores agrees with them."""
    done = run_reread("verify", scores.with_name("verdict.json"), scores)
    assert done.returncode == 0 and "all values agree" in done.stdout, done.stderr
