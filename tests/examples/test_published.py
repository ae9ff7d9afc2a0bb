"""The published verdicts of the examples: of today's claim files and scripts, and in agreement with their scores."""

import json

import pytest

from reread.arms.settings import read_arms_file
from reread.storage.files import sha256_file
from reread.storage.source import ROOT
from tests.examples.claims import check_scores


@pytest.mark.parametrize("claim", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_published_verdict_is_of_its_claim_and_agrees_with_its_scores(claim):
    evidence, script = ROOT / "results/claims" / claim.stem.replace("_", "-"), claim.with_suffix(".py")
    check_scores(evidence / "scores.csv")
    document, given = json.loads((evidence / "verdict.json").read_text()), read_arms_file(claim)
    for name, arm in given.resolved_arms().items():
        made = document["arms"][name]
        assert made["command"] == arm.run and list(made["runs"]) == list(map(str, given.seed_list))
        assert made["sources"] == {script.name: sha256_file(script)}
