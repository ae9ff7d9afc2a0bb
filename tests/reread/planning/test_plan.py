"""A plan is made once, holds all that decides what will be done, and changes no more."""

import json
from pathlib import Path

import pytest

from reread.planning.environment import Environment, read_environment, table, variable
from reread.planning.resolve import make_plan, with_data
from reread.storage.errors import InputError
from tests.reread.planning.test_experiment import EXPERIMENT, PARAMETERS, VECTORS, write

PROJECT = Path(__file__).resolve().parents[3]


def test_a_plan_is_written_as_json_and_does_not_change(tmp_path):
    plan = make_plan("trial", root=write(tmp_path))
    value = json.loads(json.dumps(plan.to_json()))
    assert value == plan.to_json() and value["environment"]["runs"] == "runs"
    assert value["variants"]["relu"]["training"]["threads"] == 1
    with pytest.raises(AttributeError):
        plan.alpha = 0.1


def test_its_key_is_of_what_decides_the_evidence(tmp_path):
    def key(**changes):
        return make_plan("trial", root=write(tmp_path, {**EXPERIMENT, **changes})).key

    usual = key()
    assert key(title="Another title", tuning={"budget": "none"}) == usual
    assert key(parameters={"training": {"learning_rate": 0.01, "amp": "auto"}}) == usual
    assert key(seeds=[0, 2]) != usual and key(alpha=0.01) != usual and key(evaluate_on="test") != usual
    elsewhere = Environment(reports=Path("elsewhere"))
    assert make_plan("trial", root=write(tmp_path), environment=elsewhere).key == usual
    write(tmp_path)
    elsewhere = Environment(reports=Path("elsewhere"))
    assert make_plan("trial", root=tmp_path, environment=elsewhere).key == usual
    assert make_plan("trial", overrides=["training.patience=9"], root=tmp_path).key != usual


@pytest.mark.parametrize(
    ("override", "section", "changed"),
    [
        ("training.learning_rate=0.5", "training", {"relu": 0.5, "swish": 0.5}),
        ("network.depth=22", "network", {"relu": 22, "swish": 22}),
        ("variants.relu.training.learning_rate=0.5", "training", {"relu": 0.5, "swish": 0.01}),
        ("network.activation=mish", "network", {"relu": {"name": "mish"}, "swish": {"name": "mish"}}),
        ("preprocessing.rows_per_class=5", "preprocessing", {"relu": 5, "swish": 5}),
    ],
)
def test_an_override_changes_all_variants_or_one(tmp_path, override, section, changed):
    plan = make_plan("trial", overrides=[override], root=write(tmp_path))
    name = override.split("=")[0].split(".")[-1]
    assert {key: getattr(variant, section)[name] for key, variant in plan.variants.items()} == changed
    assert plan.overrides == (override,) and plan.partial
    assert plan.report_name.startswith("trial-part-")


def test_each_selection_has_a_report_of_its_own(tmp_path):
    root = write(tmp_path)
    selections = [
        {},
        {"overrides": ["training.learning_rate=0.5"]},
        {"overrides": ["training.learning_rate=0.25"]},
        {"names": ["relu"]},
        {"seeds": [0]},
        {"seeds": [1]},
        {"seeds": [1], "overrides": ["training.learning_rate=0.5"]},
    ]

    def name_of(names=None, seeds=None, overrides=()):
        return make_plan("trial", names, seeds, overrides, root=root).report_name

    names = [name_of(**selection) for selection in selections]
    assert len(set(names)) == len(names) and names[0] == "trial"
    assert names == [name_of(**selection) for selection in selections]


def test_an_override_reaches_the_selected_variants_alone(tmp_path):
    experiment = {**EXPERIMENT, "variants": {**EXPERIMENT["variants"], "han": {"model": "han", "data": "docstrings"}}}
    write(tmp_path, experiment)
    plan = make_plan("trial", ["han"], overrides=["network.cell=minimal"], root=tmp_path)
    assert plan.variants["han"].network["cell"] == "minimal"
    with pytest.raises(InputError, match="variant 'relu'.*'cell'"):
        make_plan("trial", overrides=["network.cell=minimal"], root=tmp_path)


def test_a_setting_that_some_networks_lack_names_the_variants_that_have_it(tmp_path):
    texts = {name: {"model": name.replace("-", "_"), "data": "docstrings"} for name in ("han", "gru-flat")}
    root = write(tmp_path, {**EXPERIMENT, "variants": {**EXPERIMENT["variants"], **texts}})
    with pytest.raises(InputError, match="'relu'.*'hidden_size'.*: han and gru-flat have it: .*--variant"):
        make_plan("trial", overrides=["network.hidden_size=12"], root=root)
    with pytest.raises(InputError, match="'relu'.*: han has it: select it by --variant"):
        make_plan("trial", ["relu", "han"], overrides=["network.hidden_size=12"], root=root)
    with pytest.raises(InputError, match="did you mean 'hidden_size'"):
        make_plan("trial", ["han"], overrides=["network.hiden_size=12"], root=root)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.learning_rat=0.5", "'learning_rate'"),
        ("trainin.learning_rate=0.5", "'training'"),
        ("training.learning_rate", "SECTION.SETTING=VALUE"),
        ("training=3", "SECTION.SETTING=VALUE"),
        ("training.learning_rate=[", "not valid YAML"),
        ("training.learning_rate=1e-3", "1.0e-3"),
        ("variants.rely.training.patience=1", "'relu'"),
        ("variants.relu", "variants.NAME.training"),
    ],
)
def test_a_wrong_override_is_refused_by_its_name(tmp_path, override, said):
    with pytest.raises(InputError) as error:
        make_plan("trial", overrides=[override], root=write(tmp_path))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"variants": ["rely"]}, "'relu'"),
        ({"variants": []}, "at least one"),
        ({"seeds": [-1]}, "seed -1"),
        ({"seeds": [2**63]}, "seed 9"),
        ({"seeds": [1, 1]}, "seed 1 twice"),
    ],
)
def test_a_wrong_selection_is_refused(tmp_path, selection, said):
    with pytest.raises(InputError) as error:
        make_plan("trial", root=write(tmp_path), **selection)
    assert said in str(error.value)


def test_variants_that_read_other_rows_are_refused_and_other_lengths_are_not(tmp_path):
    han = {"model": "han", "data": "docstrings"}
    cut = {**han, "preprocessing": {"length_quantile": {"words": 0.5}}}
    comparison = {**EXPERIMENT["comparisons"][0], "treatment": "cut", "control": "whole"}
    experiment = {**EXPERIMENT, "variants": {"whole": han, "cut": cut}, "comparisons": [comparison]}
    plan = make_plan("trial", root=write(tmp_path, experiment))
    assert len({variant.prepared_key for variant in plan.variants.values()}) == 2 == len(plan.preparations())
    experiment["variants"]["cut"] = {**cut, "preprocessing": {"rows_per_class": 5}}
    with pytest.raises(InputError, match="'cut'.*rows.*'whole'"):
        make_plan("trial", root=write(tmp_path, experiment))


def test_data_that_is_not_ingested_yet_is_filled_in_afterwards(tmp_path):
    root = write(tmp_path, {**EXPERIMENT, "variants": {"han": {"model": "han", "data": "later"}}, "comparisons": []},
                 {**PARAMETERS, "preprocessing": {"later": {}}})  # fmt: skip
    plan = make_plan("trial", root=root)
    assert plan.data == {"later": None} and plan.variants["han"].prepared_key is None
    # The model reads text alone: what text needs is known.
    assert "length_quantile" in plan.variants["han"].preprocessing
    with pytest.raises(InputError, match="'later'"):
        plan.preparations()
    with pytest.raises(InputError, match="'later'"):
        with_data(plan, root / "data.manifest.json")
    manifest = json.loads((PROJECT / "data.manifest.json").read_text())
    manifest["datasets"]["later"] = manifest["datasets"]["docstrings"]
    (root / "data.manifest.json").unlink()
    (root / "data.manifest.json").write_text(json.dumps(manifest))
    known = with_data(plan, root / "data.manifest.json")
    assert known.data["later"]["kind"] == "text" and known.variants["han"].prepared_key
    # An image data set under the same name does not fit the model.
    manifest["datasets"]["later"] = manifest["datasets"]["digits"]
    (root / "data.manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="later"):
        with_data(plan, root / "data.manifest.json")


def test_word_vectors_that_are_not_prepared_are_refused_unless_the_variant_prepares_them(tmp_path):
    with pytest.raises(InputError, match="word2vec"):
        make_plan("trial", root=write(tmp_path, {**EXPERIMENT, "variants": {"han": VECTORS}, "comparisons": []}))
    prepared = {**VECTORS, "preprocessing": {"word_vectors": {"size": 8}}}
    variants = {"han": prepared, "plain": {"model": "han", "data": "docstrings"}}
    plan = make_plan("trial", root=write(tmp_path, {**EXPERIMENT, "variants": variants, "comparisons": []}))
    assert len(plan.preparations()) == 2


def test_the_environment_is_read_once_and_wrong_variables_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_RUNS", str(tmp_path / "there"))
    monkeypatch.setenv("REREAD_WORKERS", "3")
    plan = make_plan("trial", root=write(tmp_path))
    monkeypatch.setenv("REREAD_RUNS", "elsewhere")
    assert (plan.environment.runs, plan.environment.workers) == (tmp_path / "there", 3)
    for name, value in (("REREAD_WORKERS", "0"), ("REREAD_RUNS_PER_GPU", "x"), ("REREAD_PREPROCESSING", "two")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            with pytest.raises(InputError, match=f"{name}={value}") as error:
                make_plan("trial", root=tmp_path)
            assert "\n" not in str(error.value)
    monkeypatch.setenv("REREAD_PREPROCESSING", "dask")
    assert read_environment().preprocessing == "dask"
    monkeypatch.setenv("REREAD_PREPROCESSING", "4")
    assert read_environment().preprocessing == 4


def test_each_variable_is_described():
    rows = table()
    assert {name for name, _, _ in rows} >= {"REREAD_RUNS", "REREAD_WORKERS", "DASK_SCHEDULER_ADDRESS"}
    assert all(description for _, _, description in rows) and variable("runs") == "REREAD_RUNS"


def test_an_edit_of_the_files_during_a_run_changes_nothing_of_it(finished):
    """They were changed when the first of its four runs, two at a time, was trained."""
    plan = make_plan("tiny", root=finished.directory)
    usual = {name: plan.variants[name].training for name in plan.variants}
    jobs = [json.loads(path.read_text()) for path in finished.directory.glob("runs/*/job.json")]
    assert {job["variant"]: job["training"] for job in jobs} == usual and len(jobs) == 4
    saved = json.loads((finished.directory / "reports/tiny/plan.json").read_text())
    assert {name: about["training"] for name, about in saved["variants"].items()} == usual
    assert (saved["title"], saved["key"]) == (plan.title, plan.key)
    assert "environment" not in saved
