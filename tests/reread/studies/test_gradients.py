"""The study of gradients: it repeats byte for byte, its figure is its data's, and the committed evidence is current."""

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from reread.storage.errors import InputError
from reread.storage.source import ROOT
from reread.studies import gradients, study_io
from reread.studies.study_io import destination

COMMITTED = Path(ROOT, "results", "studies", "gradients")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "gradients"
    findings = gradients.study(gradients.DEBUG, None, torch.device("cpu"))
    study_io.publish(place, findings, study_io.provenance(), gradients.draw_figure)
    return place


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, study, tmp_path):
    assert "the factor U_h before alpha_{t-2} is dropped" in study("gradients", "--debug", "--to", tmp_path)
    again = tmp_path / "gradients"
    assert sorted(path.name for path in again.iterdir()) == ["curves.csv", "figure.png", "results.json"]
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_it_reads_no_run(study, tmp_path):
    assert "--experiment" in study("gradients", "--experiment", "default", "--to", tmp_path, code=2)
    assert "RUN" in study("gradients", "3f2a", "--to", tmp_path, code=2)


def test_another_folder_is_not_taken_for_evidence(study, tmp_path):
    (tmp_path / "gradients").mkdir()
    (tmp_path / "gradients" / "precious.txt").write_text("mine")
    printed = study("gradients", "--debug", "--to", tmp_path, code=2)
    assert f"{tmp_path}/gradients" in printed and "--to" in printed
    assert [path.name for path in (tmp_path / "gradients").iterdir()] == ["precious.txt"]


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="--to"):
        destination(tmp_path / "file", "gradients", None)


def test_evidence_is_in_a_folder_of_the_data_unless_that_is_the_studys(tmp_path):
    assert destination(tmp_path, "gates", "imdb") == tmp_path / "gates" / "imdb"
    assert destination(tmp_path, "copying", "copying") == destination(tmp_path, "copying", None) == tmp_path / "copying"


def test_the_figure_is_drawn_from_the_data_file_alone(evidence, tmp_path):
    shutil.copy(evidence / "curves.csv", tmp_path / "curves.csv")
    gradients.draw_figure(tmp_path, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (evidence / "figure.png").read_bytes()


def test_what_is_committed_is_what_the_code_says_with_its_verdicts():
    written = json.loads((COMMITTED / "results.json").read_text())
    assert written["settings"] == json.loads(json.dumps(dataclasses.asdict(gradients.Settings())))
    assert len(written["claims"]) == gradients.CLAIMS
    assert max(written["closed_form_from_autograd"].values()) < 1e-10
    verdicts = {claim["sentence"]: claim["verdict"] for claim in written["claims"]}
    assert verdicts["Gated recurrent unit solves the problem"] == "refuted"
    assert [verdict for sentence, verdict in verdicts.items() if "alpha_{t-2}" in sentence] == ["refuted"]
    assert "inconclusive" not in verdicts.values()
    table = pd.read_csv(COMMITTED / "curves.csv", dtype={"curve": str})
    assert set(table["n"]) == {written["settings"]["seeds"]}
    far = table[(table["norm"] == "spectral") & (table["distance"] == written["settings"]["distance"])]
    far = far.set_index(["panel", "curve"])["median"]
    # The order that docs/results/gru.md gives.
    linear = [far["linear", f"{radius:g}"] for radius in gradients.RADII]
    assert linear == sorted(linear) and linear[1] < 1 < linear[3]
    assert far["cells", "rnn"] < far["cells", "gru"] < far["update gate", "bias + 4"] < far["update gate", "z = 1"] == 1
