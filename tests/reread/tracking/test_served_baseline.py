"""Baselines in the registry: they answer as they were evaluated, load without the project, and may be champions."""

import asyncio

import httpx
import numpy as np
import pytest

from reread.evaluation.baselines import Baseline, evaluate_baseline
from reread.planning.environment import Environment
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import SPLITS, Prepared, open_prepared
from reread.tracking.recording import Tracker, reconcile
from reread.tracking.registry import load_model, log_baseline, set_champion
from reread.tracking.runs import open_tracking
from reread.tracking.scoring import make_app
from reread.tracking.temperature import calibration_of, tempered
from tests.reads import every_test_split
from tests.reread.tracking.examples import TEXTS, prepared_images, prepared_text, write_report
from tests.reread.tracking.test_served_model import answer_elsewhere, assert_no_pickle, kept_files, register


def fitted(folder, name: str, prepared: Prepared) -> Baseline:
    """A baseline on the six rows of an example, kept in runs/baselines."""
    rows = TEXTS if prepared.kind == "text" else np.asarray(prepared.arrays["images"])
    inputs = {split: rows[slice(*prepared.description["splits"][split])] for split in SPLITS}
    with every_test_split():
        labels = {split: np.asarray(prepared.labels[prepared.rows(split)]) for split in SPLITS}
    return evaluate_baseline(name, inputs, labels, prepared.task, prepared.classes, folder / "runs/baselines")


@pytest.mark.parametrize(
    ("name", "data", "task"),
    [("tf-idf", "snippets-single-label", "single-label"), ("nb-svm", "snippets-multi-label", "multi-label"),
     ("char-svm", "snippets-multi-label", "multi-label"), ("linear", "dots", "single-label")],
)  # fmt: skip
def test_a_baseline_answers_raw_rows_where_the_project_is_not(folder, name, data, task):
    prepared = open_prepared(prepared_images(folder) if name == "linear" else prepared_text(folder, task))
    baseline, tracking = fitted(folder, name, prepared), open_tracking()
    version = log_baseline(tracking, "trial", name, baseline, prepared)
    set_champion(tracking, data, version)
    files = kept_files(tracking, data, version)
    assert_no_pickle(files)
    assert not list(files.rglob("models")) and "torch" not in (files / "requirements.txt").read_text()

    given = np.asarray(prepared.arrays["images"]) if name == "linear" else TEXTS
    body = given.tolist() if name == "linear" else {"text": given}
    # A process of its own takes seconds: two kinds of baseline show it.
    elsewhere = (
        []
        if name in ("tf-idf", "char-svm")
        else [answer_elsewhere(folder, tracking.uri, f"models:/reread-{data}@champion", body)]
    )
    model = load_model(data)
    here = model.predict(given).to_dict("records")
    start, stop = prepared.description["splits"]["test"]
    calibration, expected = calibration_of(baseline.directory, prepared), baseline.probabilities["test"]
    assert (calibration is None) == (task == "multi-label")
    if calibration:
        expected = tempered(expected, calibration.temperature)
    for rows in (*elsewhere, here):
        probabilities = [[row["probabilities"][label] for label in prepared.classes] for row in rows[start:stop]]
        np.testing.assert_allclose(np.array(probabilities), expected, rtol=1e-6)
        if task == "multi-label":  # the labels that the report counts
            likely = baseline.probabilities["test"] >= baseline.metrics["validation"]["thresholds"]["overall"]
            wanted = [[label for label, there in zip(prepared.classes, row, strict=True) if there] for row in likely]
            assert [row["label"] for row in rows[start:stop]] == wanted
    assert model.variant == name and model.card.startswith(f"# {name} on {data}")
    assert model.card == (files / "model_card.md").read_text()

    # The same over HTTP.
    answer, refused, about = answers_of(
        make_app(model), [{"rows": given.tolist() if name == "linear" else given}, {"rows": [None]}]
    )
    assert answer.json()["predictions"] == here and answer.json()["model"]["variant"] == name
    assert refused.status_code == 400
    # The page asks for an image of this size, or else for a text.
    assert about.json()["image"] == (list(given.shape[1:]) if name == "linear" else None)


def answers_of(app, bodies: list) -> list:
    """The answers of an application, which runs in this process, to some requests and to GET /model."""

    async def send():
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as client:
            answers = [await client.post("http://test/predict", json=body) for body in bodies]
            return [*answers, await client.get("http://test/model")]

    return asyncio.run(send())


def test_a_baseline_is_one_version_and_a_run_with_its_metrics(folder, monkeypatch):
    prepared = open_prepared(prepared_text(folder))
    baseline, tracking = fitted(folder, "tf-idf", prepared), open_tracking()
    version = log_baseline(tracking, "trial", "tf-idf", baseline, prepared)
    assert log_baseline(tracking, "trial", "tf-idf", baseline, prepared) == version
    registered = tracking.client.get_model_version("reread-snippets-single-label", version)
    run = tracking.client.get_run(registered.run_id)
    assert run.info.status == "FINISHED" and float(run.data.params["C"]) == baseline.chosen
    assert run.data.metrics["test.accuracy"] == baseline.metrics["test"]["accuracy"]
    assert registered.tags["validation.rows"] == "2" and registered.tags["variant"] == "tf-idf"

    # One that is to be registered while MLflow is away waits with its report.
    lines: list[str] = []
    here = Environment(runs=folder / "runs", prepared=folder / "prepared", reports=folder / "reports")
    write_report([], folder)
    about = {
        "name": "tf-idf", "directory": baseline.directory.name, "prepared": prepared.directory.name, "metric": None,
        "champion": True,
    }  # fmt: skip
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:11")
        Tracker(lines.append).report({"report": "trial", "models": [], "baselines": [about]}, here)
    assert len(lines) == 1 and reconcile(here).recorded == ["report-trial"]
    (model,) = tracking.client.search_registered_models()
    assert {name: str(number) for name, number in model.aliases.items()} == {"champion": version}
    assert len(tracking.client.search_model_versions()) == 1


def test_a_better_network_takes_the_title_and_a_changed_baseline_is_refused(folder, monkeypatch):
    prepared = open_prepared(prepared_text(folder))
    baseline = fitted(folder, "tf-idf", prepared)
    tracking, _, _, network = register(folder, prepared.directory, "han", 0.9)
    data = "snippets"
    monkeypatch.setitem(prepared.description, "name", data)
    version = log_baseline(tracking, "trial", "tf-idf", baseline, prepared)
    score = float(tracking.client.get_model_version("reread-snippets", version).tags["validation.score"])
    assert score == baseline.metrics["validation"]["accuracy"]
    set_champion(tracking, data, network)
    # Another experiment's network with more rows behind it keeps its place.
    tracking.client.set_model_version_tag("reread-snippets", network, "validation.rows", "100")
    tracking.client.set_model_version_tag("reread-snippets", version, "experiment", "another")
    assert set_champion(tracking, data, version) == network
    assert load_model(data, variant="tf-idf").version == version

    tracking.client.set_model_version_tag("reread-snippets", version, "source", "0" * 64)
    with pytest.raises(InputError, match="the code of baseline 'tf-idf'"):
        load_model(data, version=version)


def test_an_experiment_that_shares_a_baseline_does_not_make_it_its_own(folder, monkeypatch):
    """Else a network of one seed would take the title from it, as of the same experiment."""
    prepared = open_prepared(prepared_text(folder))
    monkeypatch.setitem(prepared.description, "name", "snippets")
    baseline, tracking = fitted(folder, "tf-idf", prepared), open_tracking()
    version = log_baseline(tracking, "first", "tf-idf", baseline, prepared)
    assert set_champion(tracking, "snippets", version, "first") == version
    score = baseline.metrics["validation"]["accuracy"]
    _, _, _, network = register(folder, prepared.directory, "han", score, "second")
    for _ in range(2):  # the second time after the baseline was registered for it
        assert set_champion(tracking, "snippets", network, "second") == version
        assert log_baseline(tracking, "second", "tf-idf", baseline, prepared) == version
    assert tracking.client.get_model_version("reread-snippets", version).tags["experiment"] == "first"
    # Once its experiment is gone, the version is that of the other.
    tracking.client.delete_experiment(tracking.experiment("first"))
    log_baseline(tracking, "second", "tf-idf", baseline, prepared)
    assert tracking.client.get_model_version("reread-snippets", version).tags["experiment"] == "second"


def test_scores_of_two_metrics_are_not_compared(folder):
    prepared = open_prepared(prepared_text(folder))
    baseline, tracking = fitted(folder, "tf-idf", prepared), open_tracking()
    data = prepared.description["name"]
    first = log_baseline(tracking, "first", "tf-idf", baseline, prepared)
    set_champion(tracking, data, first, "first")
    tracking.client.set_model_version_tag(f"reread-{data}", first, "validation.score", "2.0")
    other = fitted(folder, "nb-svm", prepared)
    # By the same metric the champion holds, whichever comes later; by another one it does not.
    same = log_baseline(tracking, "second", "nb-svm", other, prepared)
    assert set_champion(tracking, data, same, "second") == first
    by_f1 = log_baseline(tracking, "second", "nb-svm", other, prepared, "macro_f1")
    tags = tracking.client.get_model_version(f"reread-{data}", by_f1).tags
    assert tags["validation.metric"] == "macro_f1"
    assert float(tags["validation.score"]) == other.metrics["validation"]["macro_f1"]
    assert set_champion(tracking, data, by_f1, "second") == by_f1


def test_a_damaged_baseline_is_not_registered(folder):
    prepared = open_prepared(prepared_text(folder))
    baseline = fitted(folder, "nb-svm", prepared)
    file = baseline.directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="model.safetensors is damaged"):
        log_baseline(open_tracking(), "trial", "nb-svm", baseline, prepared)
    assert read_json(baseline.directory / "baseline.json")["metrics"]
