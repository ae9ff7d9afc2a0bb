"""A data set of several labels a row, and a user's own: from rows to a verdict on F1, by the same commands."""

import json

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient

from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import Document, TextRows

TOPICS = {"fruit": "apple pear plum", "metal": "iron zinc lead", "weather": "rain snow fog"}
NETWORKS = {"han": {"embedding_dim": 16, "hidden_size": 8}, "word_average": {"embedding_dim": 16}}
FILLER = [
    "we",
    "saw",
    "that",
    "there",
    "was",
    "some",
    "of",
    "it",
    "on",
    "the",
    "way",
    "and",
    "it",
    "stayed",
    "for",
    "long",
]


def documents(count: int) -> list[Document]:
    """Sentences about none, some or all of the topics: the labels are the topics."""
    generator = np.random.default_rng(0)
    made = []
    for number in range(count):
        labels = tuple(np.flatnonzero(generator.random(len(TOPICS)) < 0.4).tolist())
        words = list(generator.choice(FILLER, 12))
        for label in labels:
            words.insert(generator.integers(len(words)), generator.choice(list(TOPICS.values())[label].split()))
        text = " ".join(words[: len(words) // 2]) + ". " + " ".join(words[len(words) // 2 :]) + "."
        split = ("train", "train", "train", "validation", "test")[number % 5]
        made.append(Document(f"document {number}", labels, split, text))
    return made


# The stages of DVC, in one process.
STEPS = """
import sys
from tasks import evaluate, ingest, train

for step, arguments in ((ingest, "topics"), (train, "--experiment topics"), (evaluate, "--experiment topics")):
    sys.argv = [step.__name__, *arguments.split()]
    try:
        step.main()
    except SystemExit as ended:
        assert not ended.code, step
"""


def test_several_labels_from_rows_to_a_verdict(project):
    root = project.directory
    about = About(classes=tuple(TOPICS), source="made by a test", licence="none", task="multi-label")
    add_data_set("topics", TextRows(about, documents(400)), root / "data", root / "data.manifest.json")
    parameters = yaml.safe_load((root / "params.yaml").read_text())
    parameters["preprocessing"]["topics"] = {"min_count": 2}
    (root / "params.yaml").write_text(yaml.safe_dump(parameters))
    experiment = {
        "title": "Topics",
        "variants": {name: {"model": name, "data": "topics", "network": small} for name, small in NETWORKS.items()},
        "seeds": [0, 1],
        "parameters": {"training": {"max_epochs": 6, "learning_rate": 0.02}},
        "evaluate_on": "test",
        "metric": "tuned_micro_f1",
        "comparisons": [
            {"claim": "c", "source": "s", "treatment": "han", "control": "word_average", "metric": "tuned_micro_f1"},
        ],
    }  # fmt: skip
    (root / "experiments/topics.yaml").write_text(yaml.safe_dump(experiment))

    project.run("python", "-c", STEPS, REREAD_WORKERS="1")

    metrics = json.loads((root / "reports/topics/metrics.json").read_text())
    han = metrics["variants"]["han"]
    assert han["task"] == "multi-label" and han["score"] == "tuned_micro_f1"
    # Three words name each topic: far better than a guess, which is 0.5.
    assert han["test"]["macro_auroc"]["mean"] > 0.7
    assert set(han["test"]["auroc"]) == set(TOPICS)
    (verdict,) = json.loads((root / "reports/topics/verdicts.json").read_text())["verdicts"]
    assert verdict["metric"] == "tuned_micro_f1" and verdict["verdict"] == "inconclusive"
    assert "2 seeds" in verdict["sentence"]

    # The networks and the baselines are registered, and the best on validation is the champion, whichever it is.
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    versions = {version.version: version for version in client.search_model_versions("name = 'reread-topics'")}
    scores = {version.tags["variant"]: float(version.tags["validation.score"]) for version in versions.values()}
    of_baselines = {
        name: baseline["validation"]["tuned_micro_f1"] for name, baseline in metrics["baselines"]["topics"].items()
    }
    of_networks = {
        name: variant["validation"]["tuned_micro_f1"]["mean"] for name, variant in metrics["variants"].items()
    }
    assert scores == pytest.approx({**of_baselines, **of_networks})
    assert {version.tags["validation.metric"] for version in versions.values()} == {"tuned_micro_f1"}
    champion = versions[client.get_registered_model("reread-topics").aliases["champion"]]
    assert scores[champion.tags["variant"]] == max(scores.values())
