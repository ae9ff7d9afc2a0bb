"""The models in MLflow's registry: they load where the project is not, run no pickle, and take raw input."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import models
from reread.batches import inference
from reread.storage.files import read_json, write_json
from reread.storage.job import Job
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import RunFolder
from reread.tracking.registry import load_model, log_model, registered_name, set_champion
from reread.tracking.runs import open_tracking
from tests.digests import write_digests
from tests.reread.tracking.examples import (
    TEXTS,
    evaluate_run,
    finish_run,
    make_job,
    prepared_images,
    prepared_text,
)

ANSWER = """
import builtins, json, pickle, sys
import pandas, numpy

def refuse(*arguments, **keywords):
    raise AssertionError("something was unpickled")

pickle.load = pickle.loads = pickle.Unpickler = refuse
import cloudpickle
cloudpickle.load = cloudpickle.loads = refuse
import mlflow

mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
given = json.load(open(sys.argv[3]))
given = pandas.DataFrame(given) if isinstance(given, dict) else numpy.array(given, numpy.uint8)
from reread import kinds
print(kinds.__file__)
print(model.predict(given).to_json(orient="records", double_precision=15))
"""


def register(folder: Path, prepared: Path, model: str, score: float = 0.9, experiment: str = "trial") -> tuple:
    """A finished, recorded run of an untrained network, and its model's version."""
    job = make_job(folder, prepared, model, experiment=experiment)
    run = finish_run(job, score, description=read_json(prepared / "prepared.json"))
    tracking = open_tracking()
    run_id = tracking.record(job, evaluate_run(run, score))
    return tracking, run_id, run, log_model(tracking, run_id, run)


def kept_files(tracking, data: str, version: str) -> Path:
    model_id = tracking.client.get_model_version(registered_name(data), version).source.removeprefix("models:/")
    return Path(tracking.client.get_logged_model(model_id).artifact_location.removeprefix("file://"))


def answer_elsewhere(folder: Path, uri: str, model_uri: str, given) -> list[dict]:
    """The model's answer in a fresh process that knows nothing of the project, with pickle disabled."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "given.json").write_text(json.dumps(given))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ANSWER, uri, model_uri, "given.json"],
        cwd=elsewhere, env=environment, text=True, capture_output=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    imported, answer = process.stdout.splitlines()
    assert "mlartifacts" in imported
    return json.loads(answer)


def assert_no_pickle(files: Path) -> None:
    """No file of the model is a pickle or holds one: weights are safetensors, the rest is text."""
    for file in files.rglob("*"):
        if file.is_file() and file.suffix != ".safetensors":
            file.read_text(encoding="utf-8")
        assert file.suffix not in {".pkl", ".pickle", ".pt", ".pth", ".bin"}
        assert file.is_dir() or not zipfile.is_zipfile(file)


def test_a_han_reads_raw_text_where_the_project_is_not(folder):
    prepared = prepared_text(folder)
    tracking, _run_id, run, version = register(folder, prepared, "han")
    set_champion(tracking, "snippets", version)
    files = kept_files(tracking, "snippets", version)
    assert_no_pickle(files)
    rows = answer_elsewhere(folder, tracking.uri, "models:/reread-snippets@champion", {"text": TEXTS})

    # The very numbers of the prepared arrays: serving cuts and numbers a text as preparing does.
    opened = open_prepared(prepared)
    network = models.load(run, opened.description)
    logits = torch.from_numpy(inference.predict(network, opened, np.arange(len(TEXTS))))
    expected = torch.softmax(logits.double(), 1).numpy()
    np.testing.assert_allclose(
        [[row["probabilities"][label] for label in ("read", "draw")] for row in rows], expected, atol=1e-6
    )
    assert [row["label"] for row in rows] == [("read", "draw")[number] for number in expected.argmax(1)]
    np.testing.assert_allclose([row["probability"] for row in rows], expected.max(1), atol=1e-6)

    # Attention: one entry a kept sentence, weights that add up to 1, the words that the user wrote.
    first = rows[0]["attention"]
    assert [sentence["words"] for sentence in first] == [
        ["return", "the", "sum", "of", "two", "numbers"],
        ["both", "must", "be", "positive", "."],
    ]
    assert sum(sentence["weight"] for sentence in first) == pytest.approx(1, abs=1e-5)
    for sentence in first:
        assert len(sentence["words"]) == len(sentence["word_weights"])
        assert sum(sentence["word_weights"]) == pytest.approx(1, abs=1e-5)
    assert rows[TEXTS.index("")]["attention"] == []

    signature = read_model_file(files)["signature"]
    assert json.loads(signature["inputs"]) == [{"type": "string", "name": "text", "required": True}]
    assert [output["name"] for output in json.loads(signature["outputs"])] == [
        "label",
        "probability",
        "probabilities",
        "words_read",
        "words_unknown",
        "cut",
        "attention",
    ]
    assert [parameter["name"] for parameter in json.loads(signature["params"])] == ["attention"]
    assert (files / "input_example.json").is_file()
    requirements = (files / "requirements.txt").read_text().split()
    assert {line.split("==")[0] for line in requirements} >= {"mlflow", "torch", "safetensors", "blingfire"}
    assert not any("+" in line for line in requirements)
    card = (files / "model_card.md").read_text()
    assert card == tracking.client.get_model_version("reread-snippets", version).description
    for part in ("# han on snippets", "2 for train", "test.accuracy", "0.9000", "first 3 sentences", "first 6 words"):
        assert part in card


def test_a_card_has_the_mean_of_the_variant_while_parents_wait_for_their_update(folder):
    tracking, _, _, version = register(folder, prepared_text(folder), "word_average")
    card = tracking.client.get_model_version("reread-snippets", version).description
    assert "| test.accuracy | 0.9000 | 0.9000 | one seed: none |" in card


def read_model_file(files: Path) -> dict:
    import yaml

    return yaml.safe_load((files / "MLmodel").read_text())


def test_an_image_model_takes_pixels(folder):
    prepared = prepared_images(folder)
    tracking, _run_id, run, version = register(folder, prepared, "densenet")
    files = kept_files(tracking, "dots", version)
    assert_no_pickle(files)
    # Text is none of its business: its environment needs no tokeniser.
    assert not list(files.rglob("text.py"))
    assert "blingfire" not in (files / "requirements.txt").read_text()
    opened = open_prepared(prepared)
    rows = answer_elsewhere(folder, tracking.uri, f"models:/reread-dots/{version}", opened.arrays["images"].tolist())
    logits = torch.from_numpy(inference.predict(models.load(run, opened.description), opened, np.arange(6)))
    expected = torch.softmax(logits.double(), 1).numpy()
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, atol=1e-6)
    assert "attention" not in rows[0]


def test_what_a_server_answers_and_refuses(folder):
    """The scoring protocol of ``mlflow models serve``, without the server: JSON in, rows out."""
    import mlflow
    from mlflow.exceptions import MlflowException

    tracking, _, _, version = register(folder, prepared_images(folder), "densenet")
    files = str(kept_files(tracking, "dots", version))
    pixels = np.zeros((1, 8, 8, 1), np.uint8).tolist()
    mlflow.models.predict(files, pixels, output_path="answer.json", env_manager="local")
    (row,) = read_json(folder / "answer.json")["predictions"]
    assert row["probabilities"][row["label"]] == row["probability"]
    model = mlflow.pyfunc.load_model(files)
    with pytest.raises((MlflowException, ValueError), match="float|dtype|type"):
        model.predict(np.zeros((1, 8, 8, 1)))
    with pytest.raises((MlflowException, ValueError), match="shape"):
        model.predict(np.zeros((1, 9, 8, 1), np.uint8))
    assert list(model.predict(np.zeros((0, 8, 8, 1), np.uint8))) == ["label", "probability", "probabilities"]

    tracking, _, _, version = register(folder, prepared_text(folder), "gru_flat")
    model = mlflow.pyfunc.load_model(str(kept_files(tracking, "snippets", version)))
    with pytest.raises(MlflowException, match="text"):
        model.predict(pd.DataFrame({"words": ["Draw a line."]}))


def test_several_labels(folder):
    import mlflow

    prepared = prepared_text(folder, "multi-label")
    tracking, _, _, version = register(folder, prepared, "gru_flat")
    rows = mlflow.pyfunc.load_model(str(kept_files(tracking, "snippets", version))).predict(
        pd.DataFrame({"text": TEXTS})
    )
    for row in rows.itertuples():
        assert row.label == [name for name, probability in row.probabilities.items() if probability >= 0.5]
        assert row.probability == [row.probabilities[name] for name in row.label]

    # At the threshold that validation chose, where the evaluation has it.
    job = make_job(folder, prepared, "gru_flat", seed=1)
    run = finish_run(job, description=read_json(prepared / "prepared.json"))
    evaluation = evaluate_run(run)
    metrics = read_json(evaluation / "metrics.json")
    metrics["validation"]["thresholds"] = {"overall": 0.0, "by_class": {"read": 0.5, "draw": 1.0}}
    write_json(evaluation / "metrics.json", metrics)
    write_digests(evaluation)
    version = log_model(tracking, tracking.record(job, evaluation), run, evaluation)
    assert load_model("snippets", version=version).predict(TEXTS)["label"].tolist() == [["read", "draw"]] * len(TEXTS)
    assert "best micro F1" in tracking.client.get_model_version("reread-snippets", version).description


def test_a_run_of_a_variant_that_was_renamed_has_a_version_of_each_name(folder):
    prepared = prepared_text(folder)
    tracking, run_id, run, first = register(folder, prepared, "gru_flat")
    renamed = replace(Job.read(RunFolder(run)), variant="flat")
    again = tracking.record(renamed, evaluate_run(run))
    assert again != run_id and tracking.record(renamed) == again
    second = log_model(tracking, again, run)
    assert log_model(tracking, again, run) == second != first == log_model(tracking, run_id, run)
    for variant, version in (("gru_flat", first), ("flat", second)):
        model = load_model("snippets", variant=variant)
        assert model.version == version and model.card.startswith(f"# {variant} on snippets")
    assert {variant for variant, _ in tracking.recorded("trial")} == {"gru_flat", "flat"}


def test_one_version_a_run_and_one_champion_a_data_set(folder):
    prepared = prepared_text(folder)
    tracking, run_id, run, first = register(folder, prepared, "han")
    _, _, _, second = register(folder, prepared, "gru_flat")
    assert log_model(tracking, run_id, run) == first != second
    champion = lambda: tracking.client.get_model_version_by_alias("reread-snippets", "champion")  # noqa: E731
    assert set_champion(tracking, "snippets", first) == first
    assert set_champion(tracking, "snippets", second) == second
    assert (str(champion().version), champion().tags["variant"]) == (second, "gru_flat")
    # Another experiment takes the title with a score that is as good, not with a lower one.
    _, _, _, worse = register(folder, prepared, "han", 0.8, "trifle")
    assert set_champion(tracking, "snippets", worse) == second
    _, _, _, better = register(folder, prepared, "han", 0.95, "rival")
    assert set_champion(tracking, "snippets", better) == better
    assert champion().tags["experiment"] == "rival"
    # Nor does a higher score of one seed take it from eight, while their experiment is there.
    tracking.client.set_model_version_tag("reread-snippets", better, "validation.seeds", "8")
    _, _, _, single = register(folder, prepared, "han", 0.99, "throwaway")
    assert set_champion(tracking, "snippets", single) == better
    tracking.client.delete_experiment(tracking.experiment("rival"))
    assert set_champion(tracking, "snippets", single) == single
    versions = tracking.client.search_model_versions("name = 'reread-snippets'")
    assert {version.tags["variant"] for version in versions} == {"han", "gru_flat"}
    # The run names its model, and the model its run.
    (output,) = tracking.client.get_run(run_id).outputs.model_outputs
    assert tracking.client.get_logged_model(output.model_id).source_run_id == run_id
