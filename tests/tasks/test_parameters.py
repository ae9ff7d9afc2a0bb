"""Hyper-parameters: merged, resolved, and refused with the nearest right name."""

from pathlib import Path

import pytest
import yaml

from storage.errors import InputError
from tasks.jobs import check, resolved_network, resolved_training
from tasks.parameters import load_experiment, merged

PARAMETERS = {
    "preprocessing": {"digits": {"rows_per_class": None}, "docstrings": {"minimum_count": 5}},
    "training": {"learning_rate": 0.003, "batch_size": 32},
    "models": {"densenet": {"network": {"depth": 16}, "training": {"batch_size": 64}}},
}
EXPERIMENT = {
    "title": "A test",
    "variants": {
        "relu": {"model": "densenet", "data": "digits"},
        "swish": {"model": "densenet", "data": "digits", "network": {"activation": "swish"}},
    },
    "seeds": [0, 1],
    "parameters": {"training": {"learning_rate": 0.01}},
    "pairs": [
        {"name": "p", "claim": "c", "source": "s", "better": "swish", "worse": "relu", "metric": "accuracy"},
    ],
}  # fmt: skip


def write(root: Path, experiment=None, parameters=None) -> Path:
    (root / "experiments").mkdir(exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMETERS if parameters is None else parameters))
    (root / "experiments/trial.yaml").write_text(yaml.safe_dump(EXPERIMENT if experiment is None else experiment))
    return root


def test_a_variant_takes_the_nearest_value_of_each_setting(tmp_path):
    experiment = load_experiment("trial", write(tmp_path))
    assert experiment.variants["swish"].network == {"depth": 16, "activation": "swish"}
    # The model's batch size over the general one; the experiment's learning rate over params.yaml's.
    assert experiment.variants["relu"].training == {"learning_rate": 0.01, "batch_size": 64}
    assert list(experiment.preprocessing) == ["digits"]
    # Every setting is filled in for the record, those nobody wrote as well.
    assert resolved_network(experiment, "relu")["activation"] == "relu"
    assert resolved_training(experiment, "relu")["threads"] == 1


def test_merging_changes_neither_side():
    base, over = {"a": {"b": [1], "c": 2}}, {"a": {"c": {"d": 3}}}
    assert merged(base, over) == {"a": {"b": [1], "c": {"d": 3}}}
    merged(base, over)["a"]["b"].append(2)
    assert base == {"a": {"b": [1], "c": 2}} and over == {"a": {"c": {"d": 3}}}


def test_selecting_variants_drops_the_pairs_that_lose_a_side(tmp_path):
    experiment = load_experiment("trial", write(tmp_path))
    assert len(experiment.select().pairs) == 1
    assert experiment.select(["relu"], [7]).pairs == ()
    assert experiment.select(["relu"], [7]).seeds == (7,)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("variants", "swish", "model"), "densent", "did you mean 'densenet'?"),
        (("variants", "swish", "network"), {"activaton": "swish"}, "did you mean 'activation'?"),
        (("variants", "swish", "network"), {"activation": "swoosh"}, "did you mean 'swish'?"),
        (("variants", "swish", "training"), {"learning_rat": 1}, "did you mean 'learning_rate'?"),
        (("variants", "swish", "training"), {"learning_rate": -1}, "learning_rate is -1"),
        (("variants", "swish", "data"), "digit", "did you mean 'digits'?"),
        (("variants", "swish", "netwrk"), {}, "did you mean 'network'?"),
        (("variants", "swish"), "densenet", "must be a mapping"),
        (("parameters",), {"trainning": {}}, "did you mean 'training'?"),
        (("evaluate_on",), "tests", "did you mean 'test'?"),
        (("seeds",), [0, -1], "seed -1"),
        (("seeds",), [], "no 'seeds'"),
        (("smallest_effect",), 2, "smallest_effect"),
        (("pairs",), [{**EXPERIMENT["pairs"][0], "better": "swsh"}], "did you mean 'swish'?"),
        (("pairs",), [{"name": "p"}], "has no 'better'"),
        (("tittle",), "x", "did you mean 'title'?"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, path, value, said):
    experiment = yaml.safe_load(yaml.safe_dump(EXPERIMENT))
    place = experiment
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError) as refused:
        check(load_experiment("trial", write(tmp_path, experiment)))
    message = str(refused.value)
    assert said in message and "\n" not in message
    assert "trial" in message or "params.yaml" in message


def test_broken_and_missing_files_are_named(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError, match="no experiment 'trail' in experiments/: did you mean 'trial'"):
        load_experiment("trail", tmp_path)
    (tmp_path / "params.yaml").write_text("training: [")
    with pytest.raises(InputError, match="params.yaml is not valid YAML"):
        load_experiment("trial", tmp_path)
    (tmp_path / "params.yaml").unlink()
    with pytest.raises(InputError, match="params.yaml is missing"):
        load_experiment("trial", tmp_path)


@pytest.mark.parametrize("name", ["default", "tiny"])
def test_the_experiments_of_the_project_are_sound(name):
    experiment = load_experiment(name, Path(__file__).resolve().parents[2])
    check(experiment)
    assert experiment.pairs
