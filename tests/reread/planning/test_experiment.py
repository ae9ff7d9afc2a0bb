"""Experiments: files merged to the settings of each variant, and refused with the nearest right name."""

import json
import sys
from pathlib import Path

import pytest
import yaml

import models
from reread import kinds
from reread.planning.experiment import load_experiment, merged, networks
from reread.planning.resolve import make_plan
from reread.planning.schema import parse_yaml
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.training.settings import Settings
from reread.verdicts.rule import Comparison
from reread.verdicts.seeds import least_seeds

ROOT = Path(__file__).resolve().parents[3]
PARAMETERS = {
    "preprocessing": {"digits": {"rows_per_class": None}, "docstrings": None},
    "training": {"learning_rate": 0.003, "batch_size": 32},
    "models": {"densenet": {"network": {"depth": 16}, "training": {"batch_size": 64}}, "han": None},
}
COMPARISON = {"name": "p", "claim": "c", "source": "s", "treatment": "swish", "control": "relu", "metric": "accuracy"}
EXPERIMENT = {
    "title": "A test",
    "variants": {
        "relu": {"model": "densenet", "data": "digits"},
        "swish": {"model": "densenet", "data": "digits", "network": {"activation": "swish"}},
    },
    "seeds": [0, 1],
    "parameters": {"training": {"learning_rate": 0.01}},
    "comparisons": [COMPARISON],
}
VECTORS = {"model": "han", "data": "docstrings", "network": {"word_vectors": "word2vec"}}


def write(root: Path, experiment=None, parameters=None, name="trial") -> Path:
    (root / "experiments").mkdir(exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMETERS if parameters is None else parameters))
    (root / f"experiments/{name}.yaml").write_text(
        yaml.safe_dump(EXPERIMENT if experiment is None else experiment, sort_keys=False)
    )
    manifest = root / "data.manifest.json"
    if not manifest.exists():
        manifest.symlink_to(ROOT / "data.manifest.json")
    return root


def refused(root: Path, **selection) -> str:
    """The message with which the experiment is refused, one line that names its file."""
    with pytest.raises(InputError) as error:
        make_plan("trial", root=root, **selection)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_variant_takes_the_nearest_value_of_each_setting(tmp_path):
    experiment = load_experiment("trial", write(tmp_path))
    assert experiment.variants["swish"].network == {"depth": 16, "activation": "swish"}
    # The model's batch size over the general one; the experiment's learning rate over params.yaml's.
    assert experiment.variants["relu"].training == {"learning_rate": 0.01, "batch_size": 64}
    assert {variant.data for variant in experiment.variants.values()} == {"digits"}


SIZED = """
from dataclasses import dataclass
SIZES = {"small": {"width": 2, "depth": 3}, "tall-20": {"depth": 20}}

@dataclass(frozen=True)
class Settings:
    width: int = 7
    depth: int = 7

DEBUG = Settings()

def build(settings, description):
    raise NotImplementedError
"""


@pytest.fixture
def sized(tmp_path, monkeypatch):
    """Return what resolves the variants of an experiment on a network with named sizes, whose file the test writes."""
    (tmp_path / "rooms/models").mkdir(parents=True)
    (tmp_path / "rooms/models/sized.py").write_text(SIZED)
    monkeypatch.setattr("reread.storage.registry.ROOT", tmp_path / "rooms")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path / "rooms/models")])

    def resolve(variants: dict, overrides=(), written=None, **others) -> dict:
        given = {"title": "A test", "seeds": [0], "defaults": {"model": "sized", "data": "docstrings"}, **others}
        write(tmp_path, {**given, "variants": variants}, written)
        resolved = load_experiment("trial", tmp_path, overrides=overrides).variants
        return {name: variant.network for name, variant in resolved.items()}

    yield resolve
    sys.modules.pop("models.sized", None)


def test_a_named_size_is_its_settings_and_those_beside_it_win(sized):
    resolved = sized(
        {
            "named": {"network": {"size": "small"}},
            "written": {"network": {"width": 2, "depth": 3}},
            "beside": {"network": {"size": "small", "depth": 4}},
            "grid": {"network": {"width": 9}, "grid": {"network": {"size": ["small", "tall-20"]}}},
        }
    )
    assert resolved["named"] == resolved["written"] == {"width": 2, "depth": 3}
    assert resolved["beside"] == {"width": 2, "depth": 4}
    assert resolved["grid/size=small"] == {"width": 2, "depth": 3}
    assert resolved["grid/size=tall-20"] == {"width": 9, "depth": 20}


def test_a_named_size_replaces_what_params_yaml_sets_and_is_replaced_by_an_override(sized):
    parameters = PARAMETERS | {"models": {"sized": {"network": {"width": 5, "depth": 5}}}}
    variants = {"one": {"network": {"size": "tall-20"}}}
    assert sized(variants, (), parameters) == {"one": {"width": 5, "depth": 20}}
    assert sized(variants, ["network.depth=6"], parameters) == {"one": {"width": 5, "depth": 6}}
    assert sized(variants, ["network.size=small"], parameters) == {"one": {"width": 2, "depth": 3}}
    of_experiment = {"models": {"sized": {"network": {"size": "small"}}}}
    assert sized({"one": {}}, (), parameters, parameters=of_experiment) == {"one": {"width": 2, "depth": 3}}


@pytest.mark.parametrize(
    ("model", "size", "named"),
    [("sized", "smal", "'small'"), ("sized", 20, "small, tall-20"), ("sizedd", "small", "'sized'")],
)
def test_an_unknown_size_is_refused_with_the_nearest_one(sized, model, size, named):
    with pytest.raises(InputError, match=f"variants.one: .*{named}"):
        sized({"one": {"network": {"size": size}, "model": model}})
    with pytest.raises(InputError, match=r"params.yaml.models.sized: network.size"):
        sized({"one": {}}, (), PARAMETERS | {"models": {"sized": {"network": {"size": "none"}}}})


def test_a_network_without_named_sizes_has_no_size(tmp_path):
    variants = {"relu": {"model": "resnet18", "data": "digits", "network": {"size": "18"}}}
    root = write(tmp_path, EXPERIMENT | {"variants": variants, "comparisons": []})
    assert "unknown name 'size' in network" in refused(root)


def test_what_all_variants_share_is_written_once_and_a_variant_may_differ_in_any_section(tmp_path):
    experiment = {
        "title": "A test",
        "defaults": {"model": "densenet", "data": "digits", "training": {"learning_rate": 0.5, "batch_size": 8}},
        "variants": {
            "one": {},
            "two": {"training": {"batch_size": 4}, "preprocessing": {"rows_per_class": 7}},
            "three": {"model": "han", "data": "docstrings"},
        },
        "seeds": [0],
    }
    variants = load_experiment("trial", write(tmp_path, experiment)).variants
    assert variants["one"].training == {"learning_rate": 0.5, "batch_size": 8}
    assert variants["two"].training == {"learning_rate": 0.5, "batch_size": 4}
    preprocessing = [variant.preprocessing for variant in variants.values()]
    assert preprocessing == [{"rows_per_class": None}, {"rows_per_class": 7}, {}]
    assert (variants["three"].model, variants["three"].data) == ("han", "docstrings")


def test_params_yaml_has_every_setting_of_training():
    """With its default value: a user finds it there, and what it is."""
    given = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["training"]
    assert set(given) == set(Settings.__dataclass_fields__)
    assert read(Settings, given, "training") == read(Settings, {}, "training")


@pytest.mark.parametrize("content", ["title: 2020-13-45", "seeds: [0x_]", "[" * 100_000, "title: !!python/name:os.x"])
def test_what_yaml_cannot_read_is_one_line(tmp_path, content):
    (write(tmp_path) / "experiments/trial.yaml").write_text(content)
    assert "trial.yaml is not valid YAML" in refused(tmp_path)


def test_aliases_that_grow_without_bounds_are_refused(tmp_path):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    (write(tmp_path) / "experiments/trial.yaml").write_text(bomb)
    assert "expand to more than" in refused(tmp_path)
    with pytest.raises(ValueError, match="own anchor"):
        parse_yaml("a: &a [*a]")


def test_merging_changes_neither_side():
    base, over = {"a": {"b": [1], "c": 2}}, {"a": {"c": {"d": 3}}}
    assert merged(base, over) == {"a": {"b": [1], "c": {"d": 3}}}
    merged(base, over)["a"]["b"].append(2)
    assert base == {"a": {"b": [1], "c": 2}} and over == {"a": {"c": {"d": 3}}}


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ({"name": "sgd", "momentum": 0.5}, {"name": "adamw"}, {"name": "adamw"}),
        ({"name": "sgd", "momentum": 0.5}, "adamw", {"name": "adamw"}),
        ({"name": "sgd", "momentum": 0.5}, "sgd", {"name": "sgd", "momentum": 0.5}),
        ({"name": "sgd", "a": 1}, {"name": "sgd", "b": 2}, {"name": "sgd", "a": 1, "b": 2}),
        ({"name": "sgd", "momentum": 0.5}, {"momentum": 0.1}, {"name": "sgd", "momentum": 0.1}),
        ("sgd", {"name": "sgd", "momentum": 0.1}, {"name": "sgd", "momentum": 0.1}),
    ],
)  # fmt: skip
def test_another_member_of_a_registry_replaces_the_old_one_with_its_settings(base, over, result):
    assert merged({"optimizer": base}, {"optimizer": over}) == {"optimizer": result}


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("variants", "swish", "model"), "densent", "'densenet'"),
        (("variants", "swish", "network"), {"activaton": "swish"}, "'activation'"),
        (("variants", "swish", "network"), {5: 1}, "'5'"),
        (("variants", "swish", "network"), {"activation": "swoosh"}, "'swish'"),
        (("variants", "swish", "training"), {"learning_rate": 10**400}, "learning_rate"),
        (("variants", "swish", "training"), {"learning_rat": 1}, "'learning_rate'"),
        (("variants", "swish", "training"), {"learning_rate": -1}, "learning_rate is -1"),
        (("variants", "swish", "preprocessing"), {"rows_per_clas": 1}, "'rows_per_class'"),
        (("variants", "swish", "preprocessing"), {"rows_per_class": 3}, "rows_per_class"),
        (("variants", "swish", "data"), "digit", "'digits'"),
        (("variants", "swish", "data"), ["digits"], "data is ['digits']"),
        (("variants", "swish", "netwrk"), {}, "'network'"),
        (("variants", "swish"), "densenet", "variants.swish is 'densenet'"),
        (("defaults",), {"trainin": {}}, "'training'"),
        (("parameters",), {"trainning": {}}, "'training'"),
        (("evaluate_on",), "tests", "evaluate_on is 'tests'"),
        (("seeds",), [0, -1], "seeds.1 is -1"),
        (("seeds",), [], "seeds"),
        (("seeds",), 5, "seeds is 5"),
        (("seeds",), [0, 1, 0], "seed 0 twice"),
        (("seeds",), [2**63], "seeds.0"),
        (("seeds",), [True], "seeds.0 is True"),
        (("parameters",), {"preprocessing": {"docstring": {}}}, "'docstrings'"),
        (("parameters",), {"models": {"densnet": {}}}, "'densenet'"),
        (("variants", "swish", "data"), "reviews", "'movie_reviews'"),
        (("equivalence_margin",), 2, "equivalence_margin is 2"),
        (("alpha",), 0, "alpha is 0"),
        (("comparisons",), [{**COMPARISON, "treatment": "swsh"}], "'swish'"),
        (("comparisons",), [{"name": "p"}], "'treatment'"),
        (("comparisons",), [{"treatment": "swish"}], "'control'"),
        (("comparisons",), [{key: COMPARISON[key] for key in ("treatment", "control", "claim")}], "'metric'"),
        (("comparisons",), 3, "comparisons is 3"),
        (("comparisons",), "trail", "'trial'"),
        (("comparisons",), [None], "comparisons.0 is None"),
        (("comparisons",), [{**COMPARISON, "control": 1}], "comparisons.0.control is 1"),
        (("comparisons",), [{**COMPARISON, "control": "swish"}], "with itself"),
        (("comparisons",), [COMPARISON] * 2, "two have the name 'p'"),
        (("comparisons",), [{**COMPARISON, "metric": "accurcy"}], "'accuracy'"),
        (("comparisons",), [{**COMPARISON, "metric": "recall:ten"}], "'recall:ten'"),
        (("comparisons",), [{**COMPARISON, "metric": "micro_f1"}], "'micro_f1'"),
        (("comparisons",), [{**COMPARISON, "control": "nb-svm"}], "choose from: linear, relu, swish"),
        (("comparisons",), [{**COMPARISON, "treatment": "tf-idf", "control": "nb-svm"}], "two baselines"),
        (("variants", "nb-svm"), EXPERIMENT["variants"]["relu"], "the name of a baseline"),
        (("variants", "../out"), EXPERIMENT["variants"]["relu"], "'../out' is no name"),
        (("variants", "two\nlines"), EXPERIMENT["variants"]["relu"], "'two\\nlines' is no name"),
        (("variants", "\x1b[2J"), EXPERIMENT["variants"]["relu"], "'\\x1b[2J' is no name"),
        (("variants", "swish", "data"), "../digits", "data: '../digits' is no name"),
        (("title",), "\x1b]0;title\x07", "title: '\\x1b]0;title"),
        (("tittle",), "x", "'title'"),
        (("variants",), ["swish"], "variants is ['swish']"),
        (("variants", "swish", "model"), 3, "variants.swish.model is 3"),
        (("variants", "swish", "network"), "big", "variants.swish.network is 'big'"),
        (("parameters",), {"training": None}, "training is None"),
        (("parameters",), {"models": {"densenet": "x"}}, "models.densenet is 'x'"),
        (("tuning",), "abc", "tuning is 'abc'"),
        (("tuning",), {"spread": 0}, "tuning.spread is 0"),
        (("tuning",), {"evidence": 5}, "tuning.evidence is 5"),
        (("comparisons",), [{**COMPARISON, "equivalence_margin": 1.5}], "equivalence_margin is 1.5"),
        (("variants", "other"), {"model": "han", "data": "digits"}, "han reads text"),
        (("variants", "other"), {"model": "densenet", "data": "docstrings"}, "densenet reads image"),
        (("variants", "other"), VECTORS, "word_vectors is word2vec"),
        (("grid",), 1, "grid is 1"),
        (("grid",), [1], "grid.0 is 1"),
        (("metric",), "loss", "'loss' in experiment 'trial', metric on digits"),
        (("withhold_untuned",), "yes", "withhold_untuned is 'yes'"),
        (("summary",), "lag=100", "'relu/lag=100' in experiments/trial.yaml: summary"),
        (("grid",), {"trainin": {"learning_rate": [1]}}, "'training'"),
        (("grid",), {"training": {"learning_rate": 0.1}}, "grid.training.learning_rate is 0.1"),
        (("grid",), {"training": {"learning_rate": [0.1, 0.1]}}, "each of them once"),
        (("grid",), {"training": [0.1]}, "grid.training is [0.1]"),
        (("grid",), {"training": {name: list(range(9)) for name in "abcdef"}}, "grid has 531,441 trials"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, path, value, fault):
    experiment = yaml.safe_load(yaml.safe_dump(EXPERIMENT))
    place = experiment
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    message = refused(write(tmp_path, experiment))
    assert fault in message
    assert "trial" in message or "params.yaml" in message


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("experiments/trial.yaml", "seeds: [2]", "'seeds'"),
        ("params.yaml", "training: {batch_size: 8}", "'training'"),
    ],
)
def test_a_doubled_name_is_named_with_its_line(tmp_path, file, line, name):
    write(tmp_path)
    with open(tmp_path / file, "a") as opened:
        opened.write(line + "\n")
    count = (tmp_path / file).read_text().count("\n")
    message = refused(tmp_path)
    assert file in message and name in message and f"line {count}" in message


@pytest.mark.parametrize("models", [5, None])
def test_a_section_of_another_kind_is_named(tmp_path, models):
    assert "models is" in refused(write(tmp_path, parameters={**PARAMETERS, "models": models}))
    without = {key: value for key, value in PARAMETERS.items() if key != "models"}
    assert "'models'" in refused(write(tmp_path, parameters=without))


def test_a_variant_may_be_merged_from_another_and_name_again_what_differs(tmp_path):
    write(tmp_path)
    (tmp_path / "experiments/trial.yaml").write_text(
        "title: A test\nseeds: [0, 1]\nvariants:\n  relu: &relu {model: densenet, data: digits, training: {}}\n"
        "  swish: &swish {<<: *relu, training: {learning_rate: 0.02}}\n  last: {<<: *swish, data: digits}\n"
    )
    variants = load_experiment("trial", tmp_path).variants
    assert [variant.training["learning_rate"] for variant in variants.values()] == [0.003, 0.02, 0.02]


def test_a_treatment_has_a_comparison_with_each_of_its_controls(tmp_path):
    group = {
        "treatment": "swish",
        "metric": "accuracy",
        "source": "a paper",
        "claim": "{treatment} is better than {control}.",
        "controls": {"relu": None, "linear": {"name": "baseline", "claim": "It beats a line.", "metric": "macro_f1"}},
    }
    comparisons = load_experiment("trial", write(tmp_path, {**EXPERIMENT, "comparisons": [group]})).comparisons
    shared = {"treatment": "swish", "source": "a paper"}
    assert comparisons == (
        {**shared, "name": "relu", "control": "relu", "claim": "swish is better than relu.", "metric": "accuracy"},
        {**shared, "name": "baseline", "control": "linear", "claim": "It beats a line.", "metric": "macro_f1"},
    )
    # Another experiment takes those of which it has both sides.
    variants = {**EXPERIMENT["variants"], "extra": EXPERIMENT["variants"]["relu"]}
    del variants["relu"]
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": "trial"}, name="other")
    assert load_experiment("other", tmp_path).comparisons == comparisons[1:]


def test_a_comparison_may_have_a_margin_of_its_own(tmp_path):
    group = {key: COMPARISON[key] for key in ("treatment", "claim", "source", "metric")}
    controls = {"relu": None, "linear": {"equivalence_margin": 0.05}}
    write(tmp_path, {**EXPERIMENT, "comparisons": [{**group, "equivalence_margin": 0.03, "controls": controls}]})
    plan = make_plan("trial", root=tmp_path)
    assert [Comparison(**comparison).equivalence_margin for comparison in plan.comparisons] == [0.03, 0.05]
    assert [comparison["equivalence_margin"] for comparison in plan.key_parts()["comparisons"]] == [0.03, 0.05]
    # Where none is named, the comparison has the experiment's, and the plan's key is as it was without the field.
    plain = make_plan("trial", root=write(tmp_path))
    assert Comparison(**plain.comparisons[0]).equivalence_margin is None
    assert "equivalence_margin" not in plain.key_parts()["comparisons"][0]
    write(tmp_path, {**EXPERIMENT, "comparisons": [{**COMPARISON, "equivalence_margin": 0.03}]})
    own = make_plan("trial", root=tmp_path)
    assert own.key != plain.key


def test_a_comparison_may_have_a_published_figure_in_place_of_a_control(tmp_path):
    group = {key: COMPARISON[key] for key in ("treatment", "source", "metric")}
    group |= {"reference": 0.955, "claim": "{treatment} is better than {control}."}
    write(tmp_path, {**EXPERIMENT, "comparisons": [group]})
    plan = make_plan("trial", root=tmp_path)
    (comparison,) = plan.comparisons
    assert comparison["name"] == comparison["control"] == "reference 0.955" and comparison["reference"] == 0.955
    assert comparison["claim"] == "swish is better than reference 0.955." and networks(comparison) == ["swish"]
    assert Comparison(**comparison).networks == ["swish"]
    assert plan.key_parts()["comparisons"][0]["reference"] == 0.955
    # Another experiment takes it where it has the treatment.
    variants = {"swish": EXPERIMENT["variants"]["swish"]}
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": "trial"}, name="other")
    assert load_experiment("other", tmp_path).comparisons == plan.comparisons


@pytest.mark.parametrize(
    ("change", "named"),
    [({"control": "relu"}, "'reference'"), ({"reference": -0.1}, "reference"), ({"reference": 95.5}, "0.955")],
)
def test_a_published_figure_is_a_share_and_takes_the_place_of_a_control(tmp_path, change, named):
    group = {key: COMPARISON[key] for key in ("treatment", "claim", "source", "metric")}
    write(tmp_path, {**EXPERIMENT, "comparisons": [{**group, "reference": 0.955, **change}]})
    with pytest.raises(InputError, match="comparison") as refused:
        make_plan("trial", root=tmp_path)
    assert named in str(refused.value)


def test_the_test_split_is_read_only_where_an_experiment_asks_for_it(tmp_path):
    assert load_experiment("trial", write(tmp_path)).evaluate_on == "validation"
    asking = write(tmp_path, {**EXPERIMENT, "evaluate_on": "test"})
    assert load_experiment("trial", asking).evaluate_on == "test"


def test_a_data_set_needs_no_section_of_its_own(tmp_path):
    parameters = {**PARAMETERS, "preprocessing": {}}
    swish = EXPERIMENT["variants"]["swish"]
    variants = {"swish": swish, "prepared": {**swish, "preprocessing": {"rows_per_class": 5}}}
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": []}, parameters)
    resolved = load_experiment("trial", tmp_path).variants
    assert (resolved["swish"].preprocessing, resolved["prepared"].preprocessing) == ({}, {"rows_per_class": 5})


def test_selecting_variants_drops_the_comparisons_that_lose_a_side(tmp_path):
    group = {**COMPARISON, "name": "b", "control": "linear"}
    write(tmp_path, {**EXPERIMENT, "comparisons": [COMPARISON, group]})
    names = {
        variants: [comparison["name"] for comparison in make_plan("trial", variants, root=tmp_path).comparisons]
        for variants in (None, ("swish",), ("relu",))
    }
    assert names == {None: ["p", "b"], ("swish",): ["b"], ("relu",): []}


def test_a_grid_makes_as_many_trials_of_each_variant(tmp_path):
    grid = {
        "training": {"learning_rate": [0.1, 0.05]},
        "network": {"dropout": [0.0, 0.5], "depth": [10]},
        "preprocessing": {"rows_per_class": [9]},
    }
    write(tmp_path, {**EXPERIMENT, "comparisons": [], "grid": grid})
    experiment = load_experiment("trial", tmp_path)
    assert list(experiment.trials) == ["relu", "swish"] and len(experiment.variants) == 8
    name = "swish/learning_rate=0.05,dropout=0.5,depth=10,rows_per_class=9"
    assert experiment.trials["swish"][-1] == name
    trial = experiment.variants[name]
    assert trial.network == {"depth": 10, "dropout": 0.5, "activation": "swish"}
    assert trial.training["learning_rate"] == 0.05 and trial.preprocessing == {"rows_per_class": 9}
    plan = make_plan("trial", [name], root=tmp_path)
    assert plan.trials == {"swish": [name]} and plan.partial
    # A variant's own name stands for all its trials.
    plan = make_plan("trial", ["swish", name], overrides=["training.batch_size=3"], root=tmp_path)
    assert list(plan.variants) == experiment.trials["swish"]
    assert {variant.training["batch_size"] for variant in plan.variants.values()} == {3}
    # An override of one trial, whose name has dots and equals signs.
    plan = make_plan("trial", [name], overrides=[f"variants.{name}.training.batch_size=3"], root=tmp_path)
    assert plan.variants[name].training["batch_size"] == 3


def test_a_list_of_grids_makes_the_trials_of_each(tmp_path):
    grids = [
        {"training": {"learning_rate": [0.1, 0.05]}},
        {"training": {"learning_rate": [0.1], "max_epochs": [60]}},
        {"training": {"learning_rate": [0.05]}},
    ]
    variants = {"relu": {**EXPERIMENT["variants"]["relu"], "grid": grids}}
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": []})
    plan = make_plan("trial", root=tmp_path)
    assert {
        name: (variant.training["learning_rate"], variant.training["max_epochs"])
        for name, variant in plan.variants.items()
    } == {
        "relu/learning_rate=0.1": (0.1, 30),
        "relu/learning_rate=0.05": (0.05, 30),
        "relu/learning_rate=0.1,max_epochs=60": (0.1, 60),
    }


def test_what_few_experiments_have_is_in_no_other_s_record_or_key(tmp_path):
    write(tmp_path, EXPERIMENT)
    plain = make_plan("trial", root=tmp_path)
    write(tmp_path, {**EXPERIMENT, "metric": "macro_f1", "withhold_untuned": True})
    plan = make_plan("trial", root=tmp_path)
    assert not {"metric", "withhold_untuned"} & {*plain.record(), *plain.key_parts()["rule"]}
    assert plan.record()["metric"] == "macro_f1" and plan.record()["withhold_untuned"] is True
    assert plan.key != plain.key


def test_a_grid_reaches_settings_within_settings(tmp_path):
    grid = {"preprocessing": {"length_quantile": {"words": [0.5, 0.9]}}}
    variants = {"han": {"model": "han", "data": "docstrings"}}
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": [], "grid": grid})
    plan = make_plan("trial", root=tmp_path)
    assert list(plan.variants) == ["han/length_quantile.words=0.5", "han/length_quantile.words=0.9"]
    assert [variant.preprocessing["length_quantile"]["words"] for variant in plan.variants.values()] == [0.5, 0.9]
    # Each has arrays of its own, and both the same rows.
    assert len(plan.preparations()) == 2


def test_a_grid_of_more_trials_than_can_be_resolved_is_refused(tmp_path):
    """Before it is expanded: 30^4 combinations took most of a minute and gigabytes."""
    values = list(range(1, 31))
    large = {"batch_size": values, "max_epochs": values, "patience": values, "threads": values}
    write(tmp_path, {**EXPERIMENT, "comparisons": [], "grid": {"training": large}})
    assert "grid has 810,000 trials" in refused(tmp_path)
    # Each of two variants has a thousand at most, and both together more.
    shared = {"batch_size": values, "max_epochs": values}
    write(tmp_path, {**EXPERIMENT, "comparisons": [], "grid": {"training": shared}})
    assert "1,800 trials" in refused(tmp_path)


def test_a_variant_may_have_a_grid_of_its_own(tmp_path):
    variants = {**EXPERIMENT["variants"], "plain": {**EXPERIMENT["variants"]["relu"], "grid": {}}}
    variants["relu"] = {**variants["relu"], "grid": {"network": {"depth": [10, 22, 28]}}}
    grid = {"training": {"learning_rate": [0.1, 0.05]}}
    write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": [], "grid": grid})
    experiment = load_experiment("trial", tmp_path)
    assert {name: len(trials) for name, trials in experiment.trials.items()} == {"relu": 3, "swish": 2}
    assert len(experiment.variants) == 6 and "plain" in experiment.variants


def test_an_experiment_tunes_the_variants_of_another(tmp_path):
    write(tmp_path, {**EXPERIMENT, "defaults": {"training": {"batch_size": 4}}, "metric": "macro_f1"})
    tuning = {"title": "Tune", "tunes": "trial", "seeds": [9], "grid": {"training": {"learning_rate": [0.5, 0.25]}}}
    write(tmp_path, tuning, name="tune")
    experiment, tuned = load_experiment("tune", tmp_path), load_experiment("trial", tmp_path)
    assert list(experiment.trials) == list(tuned.variants) and experiment.seeds == (9,)
    assert (experiment.evaluate_on, experiment.comparisons, experiment.metric) == ("validation", (), "macro_f1")
    trial = experiment.variants["swish/learning_rate=0.25"]
    # All but what the grid says is as in the experiment that is tuned.
    assert {**trial.training, "learning_rate": 0.01} == tuned.variants["swish"].training
    assert trial.network == tuned.variants["swish"].network
    # A variant may have a grid of its own there.
    own = {"swish": {"grid": {"training": {"batch_size": [8, 16, 32]}}}}
    write(tmp_path, {**tuning, "variants": own}, name="tune")
    trials = load_experiment("tune", tmp_path).trials
    assert [trial.split("/")[1] for trial in trials["swish"]] == ["batch_size=8", "batch_size=16", "batch_size=32"]
    assert [trial.split("/")[1] for trial in trials["relu"]] == ["learning_rate=0.5", "learning_rate=0.25"]
    for change, fault in (
        ({"tunes": "trail"}, "'trial'"),
        ({"tunes": 1}, "tunes is 1"),
        ({"evaluate_on": "test"}, "only reads validation"),
        ({"comparisons": EXPERIMENT["comparisons"]}, "remove 'comparisons'"),
        ({"defaults": {"model": "densenet"}}, "remove 'defaults'"),
        ({"variants": {"swsh": {"grid": {}}}}, "'swish'"),
        ({"variants": {"swish": {"model": "han", "grid": {}}}}, "'model'"),
        ({"variants": {"swish": None}}, "variants.swish"),
    ):
        write(tmp_path, {**tuning, **change}, name="tune")
        with pytest.raises(InputError) as error:
            load_experiment("tune", tmp_path)
        assert fault in str(error.value)


def test_an_experiment_takes_some_variants_of_another(tmp_path):
    write(tmp_path, {**EXPERIMENT, "defaults": {"training": {"batch_size": 4}}})
    again = {"title": "Again", "variants_of": "trial", "variants": ["swish"], "seeds": [8, 9]}
    write(tmp_path, again, name="again")
    experiment, other = load_experiment("again", tmp_path), load_experiment("trial", tmp_path)
    assert experiment.variants == {"swish": other.variants["swish"]} and experiment.seeds == (8, 9)
    assert experiment.comparisons == () != other.comparisons
    write(tmp_path, {**again, "variants": ["relu", "swish"], "comparisons": EXPERIMENT["comparisons"]}, name="again")
    assert load_experiment("again", tmp_path).comparisons == other.comparisons
    # It may be tuned as any other; what takes variants itself gives none.
    write(tmp_path, {"title": "Tune", "tunes": "again", "seeds": [7]}, name="tune")
    assert load_experiment("tune", tmp_path).variants == other.variants
    write(tmp_path, {**again, "variants_of": "again"}, name="third")
    with pytest.raises(InputError, match="variants_of is 'again'"):
        load_experiment("third", tmp_path)
    for change, fault in (
        ({"variants_of": "trail"}, "'trial'"),
        ({"variants": ["swsh"]}, "'swish'"),
        ({"variants": {"swish": {}}}, "variants"),
        ({"variants": []}, "variants"),
        ({"defaults": {"model": "densenet"}}, "remove 'defaults'"),
        ({"tunes": "trial"}, "remove 'variants_of'"),
    ):
        write(tmp_path, {**again, **change}, name="again")
        with pytest.raises(InputError) as error:
            load_experiment("again", tmp_path)
        assert fault in str(error.value)


def test_broken_and_missing_files_are_named(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError, match="no experiment 'trail' .*'trial'"):
        load_experiment("trail", tmp_path)
    (tmp_path / "params.yaml").write_text("training: [")
    assert "params.yaml is not valid YAML" in refused(tmp_path)
    (tmp_path / "params.yaml").unlink()
    assert "params.yaml is missing" in refused(tmp_path)


@pytest.mark.parametrize("name", ["default", "tiny", "imdb", "newsgroups20"])
def test_the_experiments_of_the_project_are_sound(name):
    plan = make_plan(name, root=ROOT)
    assert plan.comparisons and not plan.partial


@pytest.mark.parametrize("name", ["imdb", "newsgroups20"])
def test_enough_seeds_and_equal_budgets_on_the_real_corpora(name):
    plan, tuning = make_plan(name, root=ROOT), make_plan(f"{name}-tuning", root=ROOT)
    # Any claim can be supported, whatever becomes of the others.
    assert len(plan.seeds) >= least_seeds(plan.alpha, len(plan.comparisons))
    assert not set(plan.seeds) & set(tuning.seeds) and tuning.evaluate_on == "validation"
    assert set(tuning.trials) == set(plan.variants)
    # As many trials for one network as for another, and no fewer than for a baseline. Each variant is in a comparison,
    # and has its own settings.
    (budget,) = {len(trials) for trials in tuning.trials.values()}
    assert budget >= max(len(baseline.grid) for baseline in kinds.baselines().values())
    assert {side for comparison in plan.comparisons for side in networks(comparison)} == set(plan.variants)
    settings = [(variant.model, variant.network) for variant in plan.variants.values()]
    assert all(pair not in settings[:number] for number, pair in enumerate(settings))
    # Networks that begin with word vectors have their width.
    for variant in plan.variants.values():
        assert variant.network["embedding_dim"] == variant.preprocessing["word_vectors"]["size"]
    # A comparison of two networks takes away or exchanges one thing, apart from what was tuned.
    tuned = {"dropout", "word_dropout", "embedding_lr_scale"}
    for comparison in plan.comparisons:
        sides = [plan.variants[side] for side in networks(comparison)]
        if len({side.model for side in sides}) == 1 and len(sides) == 2:
            first, second = (side.network for side in sides)
            assert len({key for key in first if first[key] != second[key]} - tuned) == 1, comparison["name"]


@pytest.mark.parametrize(
    ("change", "smoothing"),
    [
        ({}, 0.0),
        ({"variants": {"relu": {"training": {"objective": {"label_smoothing": 0.05}}}}}, 0.05),
        ({"parameters": {"training": {"objective": {"label_smoothing": 0.1}}}}, 0.1),
        ({"parameters": {"models": {"densenet": {"training": {"objective": {"label_smoothing": 0.2}}}}}}, 0.2),
    ],
)
def test_several_labels_are_smoothed_only_where_the_experiment_says_so(tmp_path, change, smoothing):
    manifest = json.loads((ROOT / "data.manifest.json").read_text())
    (tmp_path / "data.manifest.json").write_text(json.dumps(manifest))
    parameters = merged(PARAMETERS, {"training": {"objective": {"name": "classification", "label_smoothing": 0.1}}})
    root = write(tmp_path, merged(EXPERIMENT, change), parameters)
    of_one_label = load_experiment("trial", root).variants["relu"].training["objective"]["label_smoothing"]
    assert of_one_label == (smoothing or 0.1)
    manifest["datasets"]["digits"]["task"] = "multi-label"
    (tmp_path / "data.manifest.json").write_text(json.dumps(manifest))
    objective = load_experiment("trial", root).variants["relu"].training["objective"]
    assert objective == {"name": "classification", "label_smoothing": smoothing}


FOLDED = {**EXPERIMENT, "folds": 5}


def test_folds_are_in_the_key_and_the_arrays_of_each_seed_have_their_own(tmp_path):
    usual, plan = (make_plan("trial", root=write(tmp_path, content)) for content in (EXPERIMENT, FOLDED))
    assert usual.key != plan.key and plan.record()["folds"] == 5 and "folds" not in usual.record()
    assert usual.key_parts()["rule"].keys() == plan.key_parts()["rule"].keys() - {"folds"}
    # Variants of the same preparation share the arrays of a fold: two seeds of five folds.
    assert len(usual.preparations()) == 1 and len(plan.preparations()) == 2 * 5
    assert {about["settings"]["fold"]["number"] for about in plan.preparations().values()} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"folds": 2}, "folds is 2: give 3 or more"),
        ({"folds": 1}, "folds is 1"),
        ({"folds": "five"}, "folds"),
        ({"folds": 2000}, "folds is 2000, and digits has 1797 rows"),
        ({"parameters": {"preprocessing": {"digits": {"rows_per_class": 9}}}}, "rows_per_class"),
        ({"comparisons": [], "search": {"trials": 2, "space": {"training": {"patience": [1, 2]}}}}, "a search"),
    ],
)
def test_folds_that_cannot_be_are_refused(tmp_path, change, named):
    with pytest.raises(InputError, match=named) as refused:
        make_plan("trial", root=write(tmp_path, {**FOLDED, **change}))
    assert "\n" not in str(refused.value)
