"""Published claims: a claim file that is run in another folder, and a verdict that is compared with its scores."""

import json
from pathlib import Path
from typing import Any

from reread.arms.settings import read_arms_file
from reread.storage.files import sha256_file
from tests.conftest import run_reread


def run_claim(claim: Path | str, folder: Path) -> dict[str, Any]:
    """Run `reread claim` in a folder by this Python and this project's source, and return the document it prints."""
    done = run_reread("claim", claim, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_scores(scores: Path) -> None:
    """Check that the published verdict.json beside the scores agrees with them."""
    done = run_reread("verify", scores.with_name("verdict.json"), scores)
    assert done.returncode == 0 and "all values agree" in done.stdout, done.stderr


def check_published(claim: Path, script: Path, evidence: Path) -> None:
    """Check that a published verdict.json agrees with its scores, and is of today's claim file and script."""
    check_scores(evidence / "scores.csv")
    document, given = json.loads((evidence / "verdict.json").read_text()), read_arms_file(claim)
    for name, arm in given.resolved_arms().items():
        made = document["arms"][name]
        assert made["command"] == arm.run and list(made["runs"]) == list(map(str, given.seed_list))
        assert made["sources"] == {script.name: sha256_file(script)}
