"""Hyper-parameters: merged, resolved, and refused with the nearest right name."""

from pathlib import Path

import pytest
import yaml

import kinds
from evaluation.statistics import least_seeds
from planning.experiment import load_experiment, merged, networks
from planning.jobs import check, resolved_network, resolved_training
from storage.errors import InputError
from training.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {
    "preprocessing": {"digits": {"rows_per_class": None}, "docstrings": {"min_count": 5}},
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


VECTORS = {"model": "han", "data": "docstrings", "network": {"word_vectors": "word2vec"}}


def write(root: Path, experiment=None, parameters=None) -> Path:
    (root / "experiments").mkdir(exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMETERS if parameters is None else parameters))
    (root / "experiments/trial.yaml").write_text(
        yaml.safe_dump(EXPERIMENT if experiment is None else experiment, sort_keys=False)
    )
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


def test_params_yaml_has_every_setting_of_training():
    """With the value that it has where nobody says another: a user finds it there, and what it is."""
    given = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["training"]
    assert set(given) == set(Settings.__dataclass_fields__)
    assert Settings.read(given, "params.yaml") == Settings()


@pytest.mark.parametrize("content", ["title: 2020-13-45", "seeds: [0x_]", "[" * 100_000])
def test_what_yaml_cannot_read_is_one_line(tmp_path, content):
    (write(tmp_path) / "experiments/trial.yaml").write_text(content)
    with pytest.raises(InputError, match="trial.yaml is not valid YAML"):
        load_experiment("trial", tmp_path)


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
        (("variants", "swish", "network"), {True: "swish"}, "the name True is True: it must be text"),
        (("variants", "swish", "network"), {5: 1}, "the name 5 is 5: it must be text"),
        (("variants", "swish", "training"), {"learning_rate": 10**400}, "learning_rate is"),
        (("variants", "swish", "network"), {"activation": "swoosh"}, "did you mean 'swish'?"),
        (("variants", "swish", "training"), {"learning_rat": 1}, "did you mean 'learning_rate'?"),
        (("variants", "swish", "training"), {"learning_rate": -1}, "learning_rate is -1"),
        (("variants", "swish", "data"), "digit", "did you mean 'digits'?"),
        (("variants", "swish", "data"), ["digits"], "data is ['digits']: it must be text"),
        (("variants", "swish", "netwrk"), {}, "did you mean 'network'?"),
        (("variants", "swish"), "densenet", "must be a mapping"),
        (("parameters",), {"trainning": {}}, "did you mean 'training'?"),
        (("evaluate_on",), "tests", "did you mean 'test'?"),
        (("seeds",), [0, -1], "seed -1"),
        (("seeds",), [], "seeds is empty: fill it"),
        (("parameters",), {"preprocessing": {"docstring": {}}}, "parameters.preprocessing: did you mean 'docstrings'?"),
        (("parameters",), {"models": {"densnet": {}}}, "parameters.models: did you mean 'densenet'?"),
        (("variants", "swish", "data"), "reviews", "A data set of your own gets one there: `reviews: {}`"),
        (("smallest_effect",), 2, "smallest_effect"),
        (("pairs",), [{**EXPERIMENT["pairs"][0], "better": "swsh"}], "did you mean 'swish'?"),
        (("pairs",), [{"name": "p"}], "has no 'better'"),
        (("tittle",), "x", "did you mean 'title'?"),
        # What YAML reads as something else than was meant.
        (("seeds",), 5, "seeds is 5: it must be a list"),
        (("seeds",), [0, 1, 0], "has seed 0 twice"),
        (("seeds",), [2**63], "is too large"),
        (("variants",), ["swish"], "variants is ['swish']: it must be a mapping"),
        (("variants",), {1: EXPERIMENT["variants"]["swish"]}, "the name 1 is 1: it must be text"),
        (("variants", "swish", "model"), 3, "variants.swish.model is 3: it must be text"),
        (("variants", "swish", "data"), None, "variants.swish.data is None: it must be text"),
        (("variants", "swish", "network"), "big", "variants.swish.network is 'big': it must be a mapping"),
        (("variants", "swish", "training"), 5, "variants.swish.training is 5: it must be a mapping"),
        (("parameters",), {"training": None}, "training is None: it must be a mapping"),
        (("parameters",), {"models": {"densenet": "x"}}, "models.densenet is 'x': it must be a mapping"),
        (("pairs",), 3, "pairs is 3: it must be a list"),
        (("pairs",), [None], "a pair is None: it must be a mapping"),
        (("pairs",), [{**EXPERIMENT["pairs"][0], "better": 1}], "better is 1: it must be text"),
        (("pairs",), [{**EXPERIMENT["pairs"][0], "worse": "swish"}], "'p' compares swish with itself"),
        (("pairs",), EXPERIMENT["pairs"] * 2, "two have the name 'p'"),
        (("pairs",), [{**EXPERIMENT["pairs"][0], "metric": "accurcy"}], "did you mean 'accuracy'?"),
        (("tuning",), "abc", "tuning is 'abc': it must be a mapping"),
        (("tunes",), 1, "remove 'variants'"),
        (("variants", "other"), {"model": "han", "data": "digits"}, "han reads text, and digits is image data"),
        (("variants", "other"), {"model": "densenet", "data": "docstrings"}, "densenet reads image, and docstrings is"),
        (("variants", "other"), VECTORS, "word_vectors is word2vec, and docstrings is prepared without"),
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


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("experiments/trial.yaml", "seeds: [2]", "'seeds' stands here a second time"),
        ("params.yaml", "training: {batch_size: 8}", "'training' stands here a second time"),
    ],
)
def test_a_name_that_stands_twice_is_named_with_its_line(tmp_path, file, line, said):
    write(tmp_path)
    with open(tmp_path / file, "a") as opened:
        opened.write(line + "\n")
    count = (tmp_path / file).read_text().count("\n")
    with pytest.raises(InputError) as refused:
        load_experiment("trial", tmp_path)
    message = str(refused.value)
    assert file in message and said in message and f"line {count}" in message and "\n" not in message


@pytest.mark.parametrize(
    ("change", "said"),
    [({"models": 5}, "models is 5: it must be a mapping"), ({"models": None}, "models is None: it must be a mapping")],
)
def test_a_section_of_another_kind_is_named(tmp_path, change, said):
    with pytest.raises(InputError, match=f"params.yaml .*{said}"):
        load_experiment("trial", write(tmp_path, parameters={**PARAMETERS, **change}))
    left = {key: value for key, value in PARAMETERS.items() if key not in change}
    with pytest.raises(InputError, match="params.yaml .*models is None: it must be a mapping"):
        load_experiment("trial", write(tmp_path, parameters=left))


def test_a_variant_may_be_merged_from_another_and_name_again_what_differs(tmp_path):
    write(tmp_path)
    (tmp_path / "experiments/trial.yaml").write_text(
        "title: A test\nseeds: [0, 1]\nvariants:\n  relu: &relu {model: densenet, data: digits, training: {}}\n"
        "  swish: &swish {<<: *relu, training: {learning_rate: 0.02}}\n  last: {<<: *swish, data: digits}\n"
    )
    variants = load_experiment("trial", tmp_path).variants
    assert [one.training["learning_rate"] for one in variants.values()] == [0.003, 0.02, 0.02]


def test_an_environment_that_cannot_be_is_refused_before_anything_starts(tmp_path, monkeypatch):
    experiment = load_experiment("trial", write(tmp_path))
    for name in ("REREAD_RUNS_A_GPU", "REREAD_PREPROCESSING"):
        with monkeypatch.context() as context:
            context.setenv(name, "x")
            with pytest.raises(InputError, match=f"{name}=x is "):
                check(experiment)


def test_a_baseline_on_one_side_of_a_pair(tmp_path):
    pair = EXPERIMENT["pairs"][0]
    experiment = load_experiment("trial", write(tmp_path, {**EXPERIMENT, "pairs": [{**pair, "worse": "linear"}]}))
    check(experiment)
    assert experiment.pairs[0]["worse"] == "linear"
    # It stays while its network does.
    assert experiment.select(["swish"]).pairs == experiment.pairs and experiment.select(["relu"]).pairs == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"pairs": [{**EXPERIMENT["pairs"][0], "worse": "nb-svm"}]},
            "pair 'p' on digits: choose from: linear, relu, swish",
        ),
        ({"pairs": [{**EXPERIMENT["pairs"][0], "better": "tf-idf", "worse": "nb-svm"}]}, "compares two baselines"),
        ({"variants": {"nb-svm": EXPERIMENT["variants"]["relu"]}}, "has the name of a baseline"),
        ({"grid": [1]}, "grid must be a mapping"),
        ({"grid": {"trainin": {"learning_rate": [1]}}}, "did you mean 'training'?"),
        ({"grid": {"training": {"learning_rate": 0.1}}}, "grid.training.learning_rate: 0.1 is not a list of values"),
        ({"grid": {"training": {"learning_rate": [0.1, 0.1]}}}, "each of them once"),
        ({"grid": {"training": [0.1]}}, "grid.training must be a mapping"),
        ({"grid": {"training": {"learning_rat": [0.1]}}}, "did you mean 'learning_rate'?"),
        ({"tunes": "trial"}, "remove 'variants'"),
    ],
)
def test_a_wrong_pair_or_grid_is_named_with_its_place(tmp_path, change, said):
    with pytest.raises(InputError) as refused:
        check(load_experiment("trial", write(tmp_path, {**EXPERIMENT, "pairs": [], **change})))
    assert said in str(refused.value) and "trial" in str(refused.value)


def test_a_grid_makes_as_many_trials_of_each_variant(tmp_path):
    grid = {"training": {"learning_rate": [0.1, 0.05]}, "network": {"dropout": [0.0, 0.5], "depth": [10]}}
    experiment = load_experiment("trial", write(tmp_path, {**EXPERIMENT, "pairs": [], "grid": grid}))
    assert list(experiment.trials) == ["relu", "swish"] and len(experiment.variants) == 8
    name = "swish/learning_rate=0.05,dropout=0.5,depth=10"
    assert experiment.trials["swish"][-1] == name
    trial = experiment.variants[name]
    assert trial.network == {"depth": 10, "dropout": 0.5, "activation": "swish"}
    assert trial.training["learning_rate"] == 0.05
    assert experiment.select([name]).trials == {"swish": [name]}
    check(experiment)


def test_an_experiment_tunes_the_variants_of_another(tmp_path):
    write(tmp_path)
    tuning = {"title": "Tune", "tunes": "trial", "seeds": [9], "grid": {"training": {"learning_rate": [0.5, 0.25]}}}
    (tmp_path / "experiments/tune.yaml").write_text(yaml.safe_dump(tuning))
    experiment, tuned = load_experiment("tune", tmp_path), load_experiment("trial", tmp_path)
    assert list(experiment.trials) == list(tuned.variants) and experiment.seeds == (9,)
    assert (experiment.evaluate_on, experiment.pairs) == ("validation", ())
    trial = experiment.variants["swish/learning_rate=0.25"]
    # All but what the grid says is as in the experiment that is tuned.
    assert {**trial.training, "learning_rate": 0.01} == tuned.variants["swish"].training
    assert trial.network == tuned.variants["swish"].network
    for change, said in (
        ({"tunes": "trail"}, "did you mean 'trial'?"),
        ({"evaluate_on": "test"}, "what tunes reads validation alone"),
        ({"pairs": EXPERIMENT["pairs"]}, "remove 'pairs'"),
    ):
        (tmp_path / "experiments/tune.yaml").write_text(yaml.safe_dump({**tuning, **change}))
        with pytest.raises(InputError) as refused:
            load_experiment("tune", tmp_path)
        assert said in str(refused.value)


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


@pytest.mark.parametrize("name", ["default", "tiny", "imdb", "newsgroups20"])
def test_the_experiments_of_the_project_are_sound(name):
    experiment = load_experiment(name, ROOT)
    check(experiment)
    assert experiment.pairs


@pytest.mark.parametrize("name", ["imdb", "newsgroups20"])
def test_enough_seeds_and_equal_budgets_on_the_real_corpora(name):
    experiment, tuning = load_experiment(name, ROOT), load_experiment(f"{name}-tuning", ROOT)
    check(tuning)
    # Any pair can pass, whatever the others do.
    assert len(experiment.seeds) >= least_seeds(experiment.alpha, len(experiment.pairs))
    assert not set(experiment.seeds) & set(tuning.seeds) and tuning.evaluate_on == "validation"
    assert set(tuning.trials) == set(experiment.variants)
    # As many trials for each network as for a baseline; each variant is in a pair, and is of its own settings.
    grids = {len(baseline.grid) for baseline in kinds.baselines().values()}
    assert {len(trials) for trials in tuning.trials.values()} == grids
    assert {side for pair in experiment.pairs for side in networks(pair)} == set(experiment.variants)
    settings = [(one.model, resolved_network(experiment, key)) for key, one in experiment.variants.items()]
    assert all(one not in settings[:number] for number, one in enumerate(settings))
    # Networks that begin with word vectors have some of their width.
    vectors = experiment.preprocessing[name]["word_vectors"]
    assert all(network["embedding"] == vectors["size"] for _, network in settings)
    # A pair of two networks takes away or exchanges one thing; the learning rate and what was tuned beside.
    for pair in experiment.pairs:
        sides = [experiment.variants[side] for side in networks(pair)]
        if len({one.model for one in sides}) == 1 and len(sides) == 2:
            first, second = (resolved_network(experiment, one.name) for one in sides)
            changed = {key for key in first if first[key] != second[key]} - {
                "dropout",
                "word_dropout",
                "embedding_lr_scale",
            }
            assert len(changed) == 1, pair["name"]
