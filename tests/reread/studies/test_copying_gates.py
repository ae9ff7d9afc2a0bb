"""The gates and gradients of the networks of the copying task, and what they recall."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import models
from reread.batches.collation import labels
from reread.batches.inference import predict
from reread.planning.plan import Plan
from reread.storage.errors import InputError
from reread.storage.ledger import read_ledger
from reread.storage.prepared import open_prepared
from reread.studies import copying_gates, study_io
from reread.studies.load_runs import EvaluatedExperiment, evaluated_experiment
from tests.reread.kinds.few_symbols import make_project
from tests.reread.studies.pipeline import run_pipeline

CPU = torch.device("cpu")
EXPERIMENT = {
    "title": "Two cells and two lags of few sequences",
    "defaults": {
        "model": "symbol_recall",
        "data": "few",
        "network": {"hidden_size": 4},
        "training": {"max_epochs": 2, "batch_size": 16, "learning_rate": 0.03},
    },
    "variants": {name: {"network": {"cell": name}} for name in ("gru", "rnn")},
    "grid": {"preprocessing": {"lag": [1, 3]}},
    "seeds": [0, 1],
    "evaluate_on": "test",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), EXPERIMENT, (48, 16, 16), 5)


@pytest.fixture(scope="module")
def plan(project) -> Plan:
    return run_pipeline(project, "few")


@pytest.fixture
def source(plan) -> EvaluatedExperiment:
    return evaluated_experiment(plan)


@pytest.mark.usefixtures("rows_of_test")
def test_gates_and_gradients_are_of_the_trained_networks(source):
    findings = copying_gates.study(copying_gates.DEBUG, source, CPU)
    # dh_T/dh_T is the identity; a cell without update gate is said to have it at 0.
    gradients = findings.tables["gradients"]
    assert set(gradients[gradients["distance"] == 0]["median"]) == {1} and gradients["distance"].max() == 5
    gates = findings.results["gates_after_training"]
    assert gates["rnn"]["distractors"]["update"]["mean"] == 0 < gates["gru"]["distractors"]["update"]["mean"] < 1


@pytest.mark.usefixtures("rows_of_test")
def test_recall_is_that_of_the_runs(source):
    table = copying_gates.study(copying_gates.DEBUG, source, CPU).tables["recall"].set_index(["cell", "lag", "seed"])
    assert len(table) == len(source.jobs) == 8
    for job in source.jobs:
        prepared = open_prepared(job.prepared)
        network, rows = models.load(job.run_directory, prepared.description), prepared.rows("test")
        scores = torch.from_numpy(predict(network, prepared, rows))
        expected = network.objective.correct(scores, labels(prepared, rows)).double().mean()
        place = (job.network["cell"], prepared.description["settings"]["lag"], job.seed)
        assert table.loc[place, "recall"] == pytest.approx(float(expected))


def test_test_rows_are_read_with_an_entry_in_the_ledger(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="few is read without an entry"):
        copying_gates.study(copying_gates.DEBUG, source, CPU)
    with study_io.reading("copying_gates", copying_gates.SPLIT, copying_gates.DEBUG, source) as entries:
        copying_gates.study(copying_gates.DEBUG, source, CPU)
    (entry,) = entries
    assert entry == read_ledger()[0] and entry.reader == "study copying_gates" and list(entry.data) == ["few"]
    # A study of validation has none.
    with study_io.reading("gates", "validation", copying_gates.DEBUG, source):
        assert read_ledger() == [entry]


@pytest.mark.usefixtures("rows_of_test")
def test_the_figure_is_drawn_from_the_tables_alone(source, tmp_path):
    findings = copying_gates.study(copying_gates.DEBUG, source, CPU)
    study_io.publish(tmp_path / "study", findings, {}, copying_gates.draw_figure)
    copying_gates.draw_figure(tmp_path / "study", tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (tmp_path / "study" / "figure.png").read_bytes()


@pytest.mark.usefixtures("rows_of_test")
def test_the_figure_of_one_seed_has_no_intervals(source, tmp_path):
    tables = copying_gates.study(copying_gates.DEBUG, source, CPU).tables
    tables["recall"].query("seed == 0").to_csv(tmp_path / "recall.csv", index=False)
    tables["gradients"].to_csv(tmp_path / "gradients.csv", index=False)
    copying_gates.draw_figure(tmp_path, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").is_file()


def test_what_does_not_fit_is_refused(source):
    with pytest.raises(InputError, match="no cell at lag 2"):
        copying_gates.study(copying_gates.Settings(lag=2), source, CPU)
    other = replace(source, jobs=[replace(source.jobs[0], model="han")])
    with pytest.raises(InputError, match="is a han"):
        copying_gates.parts_of(other)
    first, other = source.jobs[:2]
    cell = replace(other, network=first.network)
    lags = {name: replace(variant, preprocessing={"lag": 3}) for name, variant in source.plan.variants.items()}
    twice = replace(source, jobs=[first, cell], plan=replace(source.plan, variants=lags))
    with pytest.raises(InputError, match="same cell and lag"):
        copying_gates.parts_of(twice)
