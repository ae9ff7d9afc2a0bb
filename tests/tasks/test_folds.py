"""Cross-validation of own data by the commands of a user: from a table to verdicts on networks and baselines."""

import csv
import json

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient

from reread.preprocessing.manifest import open_data_set

TOPICS = {"fruit": "apple pear plum", "metal": "iron zinc lead", "weather": "rain snow fog"}
FILLER = ["we", "saw", "that", "there", "was", "some", "of", "it", "on", "the", "way", "and", "stayed", "for", "long"]
FOLDS = 4
EXPERIMENT = {
    "title": "Notes, cross-validated",
    "folds": FOLDS,
    "variants": {
        "average": {"model": "word_average", "network": {"embedding_dim": 16}},
        "gru": {"model": "gru_flat", "network": {"embedding_dim": 8, "hidden_size": 4}},
    },
    "defaults": {"data": "notes", "training": {"max_epochs": 2, "batch_size": 16, "learning_rate": 0.05}},
    "seeds": [0, 1],
    "evaluate_on": "test",
    "comparisons": [
        {"name": "words", "claim": "c", "treatment": "average", "control": "gru", "metric": "accuracy"},
        {"name": "simple", "claim": "d", "treatment": "average", "control": "tf-idf", "metric": "accuracy"},
    ],
}


def write_notes(path, rows=72):
    """A table of short notes, 24 of each topic, with an official split that cross-validation does not use."""
    generator = np.random.default_rng(0)
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "split"])
        for number in range(rows):
            topic = list(TOPICS)[number % 3]
            words = [*generator.choice(FILLER, 10), *generator.choice(TOPICS[topic].split(), 2), str(number)]
            split = "test" if number >= rows - 12 else "validation" if number >= rows - 24 else "train"
            table.writerow([" ".join(generator.permutation(words)), topic, split])


def test_cross_validation_from_a_table_to_verdicts(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    write_notes(root / "notes.csv")
    project.run("python", "-m", "reread", "data", "add", "notes.csv")
    (root / "experiments/notes.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    said = project.run("python", "-m", "reread", "run", "--experiment", "notes").stdout
    assert "each fold of notes is the test split in turn" in said

    report = root / "reports/notes"
    metrics, plan = (json.loads((report / name).read_text()) for name in ("metrics.json", "plan.json"))
    assert metrics["folds"] == plan["folds"] == FOLDS
    truth = open_data_set("notes", root / "data", root / "data.manifest.json").labels
    for variant in EXPERIMENT["variants"]:
        for seed, about in metrics["variants"][variant]["seeds"].items():
            # Each row was predicted by the one run that did not read it in training, and the score is that of all rows.
            correct, counts = np.zeros(len(truth)), np.zeros(len(truth), int)
            for number, key in enumerate(about["folds"], 1):
                job = json.loads((root / "runs" / key / "job.json").read_text())
                assert (job["seed"], job["fold"], job["folds"], job["variant"]) == (int(seed), number, FOLDS, variant)
                start, stop = json.loads((root / job["prepared"] / "prepared.json").read_text())["splits"]["test"]
                rows = np.load(root / job["prepared"] / "raw_indices.npy")
                (path,) = (root / "runs" / key / "evaluation").glob("*/test.npy")
                tested, trained = rows[start:stop], rows[: start - (stop - start)]
                assert not set(tested) & set(trained) and np.bincount(truth[tested]).tolist() == [6, 6, 6]
                correct[tested] = np.load(path).argmax(axis=1) == truth[tested]
                counts[tested] += 1
            assert (counts == 1).all()
            assert about["test"]["accuracy"] == pytest.approx(correct.mean()) and about["test"]["rows"] == len(truth)

    words, simple = json.loads((report / "verdicts.json").read_text())["verdicts"]
    # A seed tests all rows, and each of its networks trains on two of four folds.
    assert words["test_to_train"] == simple["test_to_train"] == 2
    assert words["items"] == simple["items"] == len(truth)
    # A baseline is fitted on each fold of each seed, so it is a sample as a network is.
    assert simple["kind"] == "two networks" and simple["seeds"]["control"] == [0, 1]
    of_seeds = metrics["baselines"]["notes"]["tf-idf"]["seeds"]
    assert simple["scores"]["control"] == [of_seeds[seed]["test"]["accuracy"] for seed in ("0", "1")]
    assert len(list((root / "runs/baselines").glob("[!.]*"))) == 3 * 2 * FOLDS

    page = (report / "report.html").read_text()
    assert "Each seed draws 4 folds" in page and "Nadeau and Bengio" in page and "each row in turn, by 4 folds" in page
    assert json.loads((root / "results/test-reads.jsonl").read_text().splitlines()[-1])["folds"] == FOLDS
    assert "by 4 folds" in " ".join(project.run("python", "-m", "reread", "ledger", "--data", "notes").stdout.split())

    # The verdicts come out again of what was predicted on each row.
    agreed = project.run("python", "-m", "reread", "verify", "reports/notes").stdout
    assert "from predictions on each item: all values agree" in agreed

    project.run("python", "-m", "reread", "index", "reports", "--output", "claims")
    project.run("python", "-m", "reread", "verify", "claims/notes/verdict.json")

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'notes'")
    runs = client.search_runs([experiment.experiment_id], max_results=200)
    assert sum("fold" in run.data.tags for run in runs) == 2 * 2 * FOLDS
    (parent,) = [run for run in runs if run.info.run_name == "average"]
    assert parent.data.params["folds"] == str(FOLDS) and parent.data.metrics["variant.seeds"] == 2
    mean = metrics["variants"]["average"]["test"]["accuracy"]["mean"]
    assert parent.data.metrics["test.accuracy.mean"] == pytest.approx(mean)
    assert "one of 4 folds" in parent.data.tags["mlflow.note.content"]
    assert not client.search_registered_models()

    # A seed without one of its folds is left out.
    lost = metrics["variants"]["gru"]["seeds"]["1"]["folds"][2]
    (root / "runs" / lost / "result.json").unlink()
    project.run("python", "-m", "reread", "evaluate", "--experiment", "notes", code=2)
    project.run("python", "-m", "reread", "evaluate", "--experiment", "notes", "--so-far")
    again = json.loads((report / "metrics.json").read_text())
    assert again["so_far"] == {"gru": "1 of 2 seeds"} and list(again["variants"]["gru"]["seeds"]) == ["0"]
    refused = project.run("python", "-m", "reread", "publish", "notes", code=2).stderr
    assert "cross-validated" in refused and len(refused.splitlines()) == 1 and not (root / "results/notes").exists()


def test_more_folds_than_the_rarest_class_has_rows_are_refused_before_training(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    write_notes(root / "notes.csv", rows=30)
    project.run("python", "-m", "reread", "data", "add", "notes.csv")
    (root / "experiments/notes.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "folds": 11}))
    refused = project.run("python", "-m", "reread", "run", "--experiment", "notes", code=2).stderr
    assert "'fruit' is in 10 rows" in refused and "folds is 11" in refused
    assert not list((root / "runs").glob("*/job.json")) and not (root / "reports/notes").exists()
