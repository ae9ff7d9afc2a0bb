"""The copying task from its rows to the study: sequences, the objective per position, the network, and the evidence."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch.nn import functional

import models
from models.layers.cells import NAMES
from models.objectives import make_objective, to_probabilities
from models.symbol_recall import code_features
from reread.kinds.symbols import SymbolRows, class_names
from reread.planning.plan import Plan
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.sources import copying as source_of_rows
from reread.preprocessing.sources import embedded
from reread.storage.errors import InputError
from reread.storage.ledger import read_ledger
from reread.storage.prepared import open_prepared
from reread.storage.source import ROOT
from reread.studies import copying, copying_gates, study_io
from reread.studies.load_runs import EvaluatedExperiment, evaluated_experiment
from reread.verdicts.statistics import mean_interval
from tests.reread.studies.pipeline import run_pipeline

CPU = torch.device("cpu")
ALPHABET, POSITIONS = 3, 2
EXPERIMENT = {
    "title": "Two cells and two lags of few sequences",
    "defaults": {
        "model": "symbol_recall",
        "data": "few",
        "network": {"hidden_size": 4},
        "training": {"objective": {"name": "positions"}, "max_epochs": 2, "batch_size": 16, "learning_rate": 0.03},
    },
    "variants": {name: {"network": {"cell": name}} for name in ("gru", "rnn")},
    "grid": {"preprocessing": {"lag": [1, 3]}},
    "seeds": [0, 1],
    "evaluate_on": "test",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A folder with a data set of 80 short sequences, and an experiment that reads it."""
    root = tmp_path_factory.mktemp("project")
    generator = np.random.default_rng(0)
    split = np.repeat(np.arange(3, dtype=np.uint8), (48, 16, 16))
    about = About(class_names(ALPHABET, POSITIONS), "made by a test", "none", "multi-label")
    symbols = generator.integers(ALPHABET, size=(80, POSITIONS + 5), dtype=np.uint8)
    rows = SymbolRows(about, symbols, generator.random(80), split, ALPHABET, POSITIONS)
    add_data_set("few", rows, root / "data", root / "data.manifest.json")
    parameters = yaml.safe_load(Path(ROOT, "params.yaml").read_text())
    parameters["preprocessing"]["few"] = {}
    (root / "params.yaml").write_text(yaml.safe_dump(parameters))
    (root / "experiments").mkdir()
    (root / "experiments/trial.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    return root


@pytest.fixture(scope="module")
def plan(project) -> Plan:
    return run_pipeline(project, "trial")


@pytest.fixture
def source(plan) -> EvaluatedExperiment:
    return evaluated_experiment(plan)


def prepared_at(project: Path, lag: int):
    folders = (project / "data", project / "data.manifest.json", project / "prepared")
    return open_prepared(prepare("few", {"lag": lag}, *folders))


@pytest.mark.usefixtures("rows_of_test")
def test_sequences_are_symbols_then_distractors_then_requests(project):
    found = prepared_at(project, 3)
    raw = np.load(project / "data/few/symbols.npy")
    codes, labels = found.arrays["codes"], found.labels.reshape(80, POSITIONS, ALPHABET)
    assert codes.shape == (80, 2 * POSITIONS + 3)
    x = code_features(ALPHABET)[torch.from_numpy(codes.astype(np.int64))].numpy()
    assert np.array_equal(x[:, :2, :3], labels) and np.array_equal(labels.argmax(2), raw[:, :2])
    test = x[found.rows("test")]
    assert np.array_equal(test[:, 2:5, :3].argmax(2), raw[found.rows("test"), 2:5])
    assert (test[:, :, 3] == [1, 1, 0, 0, 0, 0, 0]).all() and (test[:, :, 4] == [0, 0, 0, 0, 0, 1, 1]).all()
    # In training the lag is at most as long, and after the last request there is nothing.
    lengths = (codes > 0).sum(axis=1)
    training = found.rows("train")
    assert set(lengths[training]) == {5, 6, 7} and set(lengths[found.rows("validation")]) == {7}
    for row in training:
        assert (x[row, lengths[row] - 2 : lengths[row], 4] == 1).all() and not x[row, lengths[row] :].any()


def test_rows_and_labels_are_the_same_at_every_lag(project):
    short, long = prepared_at(project, 1), prepared_at(project, 5)
    assert np.array_equal(short.labels, long.labels) and np.array_equal(
        short.arrays["codes"][:, :2], long.arrays["codes"][:, :2]
    )
    with pytest.raises(InputError, match="few.*lag is 6.*up to 5"):
        prepared_at(project, 6)


def test_the_published_rows_are_drawn_again_as_they_were():
    first, again = source_of_rows.rows(), source_of_rows.rows()
    assert np.array_equal(first.symbols, again.symbols) and first.symbols.shape == (23_100, 204)
    assert np.bincount(first.split).tolist() == list(source_of_rows.ROWS.values())
    # It is made when an experiment wants it.
    assert "copying" not in embedded()


def test_the_objective_is_cross_entropy_at_each_position():
    objective = make_objective({"name": "positions"}, {"positions": 2})
    scores = torch.tensor([[2.0, 0.0, -1.0, 0.0, 1.0, 0.5]])
    target = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    each = functional.cross_entropy(scores.view(2, 3), torch.tensor([0, 2]))
    assert objective.loss(None, scores, target, ()) == objective.held_out_loss(scores, target) == each
    probabilities = to_probabilities(objective, scores.numpy())
    assert probabilities.reshape(2, 3).sum(axis=1) == pytest.approx([1, 1])
    assert objective.correct(scores, target).tolist() == [[True, False]]
    assert copying.row_recall(probabilities, target.numpy(), 2).tolist() == [0.5]
    with pytest.raises(InputError, match="'positions'.*small"):
        make_objective({"name": "positions"}, {"name": "small"})


@pytest.mark.parametrize("cell", NAMES)
def test_the_network_reads_nothing_after_the_requests(cell, project):
    found = prepared_at(project, 3)
    torch.manual_seed(0)
    network = models.build("symbol_recall", {"hidden_size": 4, "cell": cell}, found.description)
    codes = torch.from_numpy(np.array(found.arrays["codes"]))
    with torch.no_grad():
        together = network(codes)
        for row in range(10):
            alone = network(codes[row : row + 1, : int((codes[row] > 0).sum())])
            torch.testing.assert_close(together[row : row + 1], alone)


def test_a_gru_learns_to_remember(project):
    """Over one distractor, in 150 steps on the training split."""
    found = prepared_at(project, 1)
    torch.manual_seed(0)
    network = models.build("symbol_recall", {"hidden_size": 16}, found.description)
    objective = make_objective({"name": "positions"}, found.description)
    codes, labels = (torch.from_numpy(np.array(one)) for one in (found.arrays["codes"], found.labels))
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.03)
    for _ in range(150):
        optimiser.zero_grad()
        objective.loss(network, network(codes[:48]), labels[:48].float(), ()).backward()
        optimiser.step()
    held_out = objective.correct(network(codes[48:]), labels[48:].float())
    assert held_out.double().mean() > 0.9


@pytest.mark.usefixtures("rows_of_test")
def test_the_study_follows_from_the_runs(source):
    findings = copying.study(copying.DEBUG, source, CPU)
    table = findings.tables["recall"]
    assert table.groupby(["cell", "lag"], sort=False).size().to_dict() == {
        ("gru", 1): 2, ("rnn", 1): 2, ("gru", 3): 2, ("rnn", 3): 2,
    }  # fmt: skip
    for job in source.jobs:
        prepared = open_prepared(job.prepared)
        network = models.load(job.run_directory, prepared.description)
        rows = prepared.rows("test")
        with torch.no_grad():
            scores = network(torch.from_numpy(np.array(prepared.arrays["codes"][rows])))
        expected = network.objective.correct(scores, torch.from_numpy(np.array(prepared.labels[rows]))).double().mean()
        cell, lag = job.network["cell"], prepared.description["settings"]["lag"]
        mine = table[(table["cell"] == cell) & (table["lag"] == lag) & (table["seed"] == job.seed)]
        assert mine["recall"].to_list() == pytest.approx([float(expected)])
    wide = table[table["lag"] == 3].pivot(index="seed", columns="cell", values="recall")
    (claim,) = findings.results["claims"]
    scores = claim["measured"]["scores"]
    assert scores == {
        "treatment": pytest.approx(wide["gru"].to_list()),
        "control": pytest.approx(wide["rnn"].to_list()),
    }
    assert claim["measured"]["kind"] == "two networks"
    # Two seeds cannot decide.
    assert claim["verdict"] == "inconclusive"


@pytest.mark.usefixtures("rows_of_test")
def test_gates_and_gradients_are_of_the_trained_networks(source):
    findings = copying_gates.study(copying_gates.DEBUG, source, CPU)
    # dh_T/dh_T is the identity; a cell without update gate is said to have it at 0.
    gradients = findings.tables["gradients"]
    assert set(gradients[gradients["distance"] == 0]["median"]) == {1} and gradients["distance"].max() == 5
    gates = findings.results["gates_after_training"]
    assert gates["rnn"]["distractors"]["update"]["mean"] == 0 < gates["gru"]["distractors"]["update"]["mean"] < 1


def test_the_study_reads_test_rows_with_an_entry_in_the_ledger(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="few is read without an entry"):
        copying.study(copying.DEBUG, source, CPU)
    with study_io.reading("copying", copying.SPLIT, copying.DEBUG, source) as entries:
        assert copying.study(copying.DEBUG, source, CPU).results["claims"]
    (entry,) = entries
    assert entry == read_ledger()[0] and entry.reader == "study copying" and list(entry.data) == ["few"]
    # A study of validation has none.
    with study_io.reading("gates", "validation", copying.DEBUG, source):
        assert read_ledger() == [entry]


@pytest.mark.usefixtures("rows_of_test")
@pytest.mark.parametrize("study", [copying, copying_gates])
def test_the_figure_is_drawn_from_the_tables_alone(study, source, tmp_path):
    study_io.publish(tmp_path / "copying", study.study(study.DEBUG, source, CPU), {}, study.draw_figure)
    study.draw_figure(tmp_path / "copying", tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (tmp_path / "copying" / "figure.png").read_bytes()


def test_the_figure_of_one_seed_has_no_intervals(tmp_path):
    rows = "gru,1,0,0.01,0.5\ngru,3,0,0.01,0.25\n"
    (tmp_path / "recall.csv").write_text(f"cell,lag,seed,learning_rate,recall\n{rows}")
    copying.draw_figure(tmp_path, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").is_file()


@pytest.mark.usefixtures("rows_of_test")
def test_recall_needs_no_weights(source, tmp_path):
    """Predictions of a training machine come without its weights."""
    before = copying.study(copying.DEBUG, source, CPU).results
    weights = [job.run.weights for job in source.jobs]
    try:
        for number, path in enumerate(weights):
            path.rename(tmp_path / str(number))
        assert copying.study(copying.DEBUG, source, CPU).results == before
        with pytest.raises(InputError, match="best.safetensors is missing"):
            copying_gates.study(copying_gates.DEBUG, source, CPU)
    finally:
        for number, path in enumerate(weights):
            (tmp_path / str(number)).rename(path)


def test_what_does_not_fit_is_refused(source):
    with pytest.raises(InputError, match="lag 2"):
        copying.study(copying.Settings(primary_lag=2), source, CPU)
    with pytest.raises(InputError, match="no cell at lag 2"):
        copying_gates.study(copying_gates.Settings(lag=2), source, CPU)
    other = replace(source, jobs=[replace(source.jobs[0], model="han")])
    with pytest.raises(InputError, match="is a han"):
        copying.parts_of(other)
    first, other = source.jobs[:2]
    cell = replace(other, network=first.network)
    lags = {name: replace(one, preprocessing={"lag": 3}) for name, one in source.plan.variants.items()}
    twice = replace(source, jobs=[first, cell], plan=replace(source.plan, variants=lags))
    with pytest.raises(InputError, match="same cell and lag"):
        copying.parts_of(twice)


def test_the_committed_evidence_follows_from_its_tables():
    folder = Path(ROOT, "results", "studies", "copying")
    written, recall = json.loads((folder / "results.json").read_text()), pd.read_csv(folder / "recall.csv")
    for (cell, lag), mine in recall.groupby(["cell", "lag"]):
        found, expected = written["recall"][cell][str(lag)], mean_interval(mine["recall"].to_list())
        assert (found["mean"], found["low"], found["n"]) == pytest.approx((expected.mean, expected.low, expected.n))
