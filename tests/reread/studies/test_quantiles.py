"""At which quantile to truncate: the rule of the knee, and a study of an experiment that was trained and evaluated."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from reread.evaluation.run import find_evaluation
from reread.planning.plan import Plan
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.storage.source import ROOT
from reread.studies import quantiles, study_io
from reread.studies.load_runs import EvaluatedExperiment, evaluated_experiment
from tests.reread.studies.pipeline import run_pipeline

CPU = torch.device("cpu")
EXPERIMENT = {
    "title": "Two quantiles of few documents",
    "defaults": {
        "model": "han",
        "data": "docstrings",
        "preprocessing": {"rows_per_class": 6},
        "network": {"embedding_dim": 8, "hidden_size": 4},
        "training": {"max_epochs": 2, "batch_size": 8, "schedule": {"warmup_epochs": 0}},
    },
    "variants": {
        f"q{100 * quantile:.0f}": {"preprocessing": {"length_quantile": {"words": quantile, "sentences": quantile}}}
        for quantile in (0.5, 1.0)
    },
    "seeds": [0, 1],
    "comparisons": [
        {"treatment": "q100", "control": "q50", "metric": "accuracy", "claim": "Whole is better.", "source": "none"}
    ],
    "evaluate_on": "test",
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    """The experiment, prepared, trained and evaluated in a folder of its own."""
    root = tmp_path_factory.mktemp("project")
    for name in ("data", "data.manifest.json", "params.yaml"):
        (root / name).symlink_to(Path(ROOT, name).resolve())
    (root / "experiments").mkdir()
    (root / "experiments/trial.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    return run_pipeline(root, "trial")


@pytest.fixture
def source(plan) -> EvaluatedExperiment:
    return evaluated_experiment(plan)


def test_the_knee_is_the_smallest_quantile_that_loses_too_little_to_matter():
    accuracy = {
        0.5: [0.80, 0.81, 0.80, 0.81],
        # Loses .008 in the mean, and .012 is not excluded.
        0.75: [0.901, 0.881, 0.901, 0.885],
        # Loses .006, .005, .007, .006.
        0.9: [0.894, 0.895, 0.893, 0.894],
        0.95: [0.90, 0.90, 0.90, 0.90],
        1.0: [0.899, 0.899, 0.899, 0.899],
    }
    assert quantiles.knee(accuracy, 0.01) == (0.9, 0.95)
    assert quantiles.knee({**accuracy, 0.9: [0.880, 0.895, 0.893, 0.894]}, 0.01) == (0.95, 0.95)
    assert quantiles.knee(accuracy, 0.2) == (0.5, 0.95)
    # One seed has no interval and excludes nothing.
    assert quantiles.knee({0.5: [0.9], 1.0: [0.9001]}, 0.01) == (1.0, 1.0)


def test_test_rows_are_equal_at_every_quantile(source):
    folders = {job.variant: job.prepared for job in source.jobs}
    short, whole = (open_prepared(folders[name]) for name in ("q50", "q100"))
    for name in ("labels", "raw_indices"):
        assert np.array_equal(short.arrays[name], whole.arrays[name])
    assert len(short.arrays["tokens"]) < len(whole.arrays["tokens"])


@pytest.mark.usefixtures("rows_of_test")
def test_the_table_follows_from_the_runs_and_their_arrays(source, tmp_path):
    findings = quantiles.study(quantiles.Settings(), source, CPU)
    table = findings.tables["truncation"].set_index("variant")
    assert table["quantile"].to_dict() == {"q50": 0.5, "q100": 1.0}
    for job in source.jobs:
        prepared = open_prepared(job.prepared)
        rows, row = prepared.rows("train"), table.loc[job.variant]
        counts = np.asarray(prepared.arrays["word_counts"])[rows]
        assert (row["kept_words"], row["kept_sentences"]) == (counts.max(), counts.shape[1])
        assert row["train_padding"] == pytest.approx(1 - counts.sum() / (counts.size * counts.max()))
        evaluations = [find_evaluation(run.run_directory) for run in source.jobs if run.variant == job.variant]
        predictions = [np.load(folder / "test.npy").argmax(axis=1) for folder in evaluations]
        accuracies = [(labels == prepared.labels[prepared.rows("test")]).mean() for labels in predictions]
        assert row["test_accuracy"] == pytest.approx(np.mean(accuracies))
    assert table.loc["q100", "train_words_kept"] == table.loc["q100", "train_documents_whole"] == 1
    assert table.loc["q50", "train_words_kept"] < 1
    scores = {
        quantile: source.scores(name, "validation", "accuracy") for name, quantile in (("q50", 0.5), ("q100", 1.0))
    }
    assert (findings.results["knee"], findings.results["best"]) == quantiles.knee(scores, 0.01)
    (claim,) = findings.results["claims"]
    assert claim["verdict"] == "inconclusive" and claim["measured"]["name"] == "q50"


def test_the_evidence_has_the_keys_of_what_was_read(source, tmp_path):
    findings = quantiles.study(quantiles.Settings(), source, CPU)
    place = study_io.destination(tmp_path, "quantiles", source.data)
    study_io.publish(place, findings, study_io.provenance(source.keys()), quantiles.draw_figure)
    written = json.loads((place / "results.json").read_text())["provenance"]
    assert written["experiment"] == "trial" and written["plan"] == source.plan.key
    assert written["runs"]["q50"] == {str(job.seed): job.run_key for job in source.jobs if job.variant == "q50"}
    assert sorted(path.name for path in place.iterdir()) == ["figure.png", "results.json", "truncation.csv"]
    quantiles.draw_figure(place, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (place / "figure.png").read_bytes()
    assert pd.read_csv(place / "truncation.csv")["data"].unique() == ["docstrings"]


def changed(plan: Plan, name: str, **values) -> Plan:
    return replace(plan, variants={**plan.variants, name: replace(plan.variants[name], **values)})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"network": {"hidden_size": 5}}, "another network"),
        ({"preprocessing": {"length_quantile": {"words": 0.5, "sentences": 0.9}}}, "length_quantile"),
        ({"preprocessing": {"length_quantile": {"words": 0.5, "sentences": 0.5}}}, "each its own"),
    ],
)
def test_variants_that_differ_in_more_are_refused(source, change, fault):
    with pytest.raises(InputError, match=fault):
        quantiles.quantiles_of(replace(source, plan=changed(source.plan, "q100", **change)))


def test_a_report_of_other_settings_and_runs_that_are_not_trained_are_refused(plan):
    with pytest.raises(InputError, match="other settings.*reread run"):
        evaluated_experiment(replace(plan, alpha=0.01))
    with pytest.raises(InputError, match="seed 7 is not trained.*reread train"):
        evaluated_experiment(replace(plan, seeds=(0, 7)))
    elsewhere = plan.environment.model_copy(update={"reports": plan.environment.reports / "none"})
    with pytest.raises(InputError, match="not evaluated.*reread run"):
        evaluated_experiment(replace(plan, environment=elsewhere))


def test_an_experiment_whose_data_is_not_here_is_refused_with_one_command(plan):
    name, variant = next(iter(plan.variants.items()))
    missing = replace(plan, variants={**plan.variants, name: replace(variant, prepared_key=None)})
    with pytest.raises(InputError, match=f"data set '{variant.data}' is not here: run `reread run [^`]*`$"):
        evaluated_experiment(missing)


def test_a_study_that_judges_no_claim_prints_its_folder():
    assert study_io.summary({"n": 3}, Path("results/studies/mine")) == "evidence: results/studies/mine"
