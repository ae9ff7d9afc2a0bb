"""The study of gradients: repeats byte for byte, its figure is its data's, and what is committed is what it says."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from storage.errors import InputError, command
from storage.source import ROOT
from studies import gradients
from studies.evidence import destination

COMMITTED = Path(ROOT, "results", "studies", "gradients")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "gradients"
    gradients.study(gradients.DEBUG, place)
    return place


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, tmp_path, monkeypatch, capsys):
    """``python -m studies.gradients``, in this process."""
    monkeypatch.setattr(sys, "argv", ["studies.gradients", "--debug", "--to", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        command(gradients.main)()
    assert "the factor U_h before alpha_{t-2} is dropped" in capsys.readouterr().out
    again = tmp_path / "gradients"
    assert sorted(path.name for path in again.iterdir()) == ["curves.csv", "figure.png", "results.json"]
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_another_folder_is_not_taken_for_evidence(tmp_path, monkeypatch, capsys):
    (tmp_path / "gradients").mkdir()
    (tmp_path / "gradients" / "precious.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["studies.gradients", "--debug", "--to", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        command(gradients.main)()
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/gradients is there and is not a study's evidence") and "--to" in said
    assert [path.name for path in (tmp_path / "gradients").iterdir()] == ["precious.txt"]


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file: give --to a folder"):
        destination(tmp_path / "file", "gradients")


def test_the_figure_is_drawn_from_the_data_file_alone(evidence, tmp_path):
    shutil.copy(evidence / "curves.csv", tmp_path / "curves.csv")
    gradients.draw_figure(tmp_path, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (evidence / "figure.png").read_bytes()


def test_what_is_committed_is_what_the_code_says_with_its_verdicts():
    said = json.loads((COMMITTED / "results.json").read_text())
    assert said["plan"] == json.loads(json.dumps(dataclasses.asdict(gradients.Plan())))
    assert max(said["closed_form_from_autograd"].values()) < 1e-10
    verdicts = {one["sentence"]: one["verdict"] for one in said["claims"]}
    assert verdicts["Gated recurrent unit solves the problem"] == "refuted"
    assert [verdict for sentence, verdict in verdicts.items() if "alpha_{t-2}" in sentence] == ["refuted"]
    assert "inconclusive" not in verdicts.values()
    table = pd.read_csv(COMMITTED / "curves.csv", dtype={"curve": str})
    assert set(table["n"]) == {said["plan"]["seeds"]}
    far = table[(table["norm"] == "spectral") & (table["distance"] == said["plan"]["distance"])]
    far = far.set_index(["panel", "curve"])["median"]
    # The order that docs/results/gru.md tells.
    linear = [far["linear", f"{radius:g}"] for radius in gradients.RADII]
    assert linear == sorted(linear) and linear[1] < 1 < linear[3]
    assert far["cells", "rnn"] < far["cells", "gru"] < far["update gate", "bias + 4"] < far["update gate", "z = 1"] == 1
