"""The published claims on the time of kernels: each verdict is what its claim file and its samples give."""

import json
import math
import statistics

import pytest

from reread.storage.source import ROOT
from tests.conftest import run_reread
from tests.examples.claims import check_scores

CLAIMS = sorted(path.parent for path in (ROOT / "results/claims").glob("*/claim.yaml"))


@pytest.mark.parametrize("folder", CLAIMS, ids=lambda folder: folder.name)
def test_a_published_verdict_is_that_of_its_claim_file(folder, tmp_path):
    done = run_reread("judge", folder.relative_to(ROOT) / "claim.yaml", "--output", tmp_path / "verdict", folder=ROOT)
    assert done.returncode == 0, done.stderr
    for name in ("verdict.json", "badge.svg"):
        assert (tmp_path / "verdict" / name).read_bytes() == (folder / name).read_bytes()
    check_scores(folder / "scores.jsonl")


@pytest.mark.parametrize("folder", CLAIMS, ids=lambda folder: folder.name)
def test_a_score_is_the_geometric_mean_of_its_samples(folder):
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert len(lines) >= 16
    for line in lines:
        assert math.isclose(line["score"], statistics.geometric_mean(line["samples_ms"]))
