"""The verdicts that a plan can reach: its rows, what its tuning saw, and the claims of the default experiment."""

import json
from dataclasses import replace

import numpy as np
import pytest

from reread.planning.environment import Environment
from reread.planning.reach import plan_reach, reach_lines
from reread.planning.resolve import make_plan
from reread.preprocessing.rows import choose_rows
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.prepared import DESCRIPTION, SPLITS
from tests.reread.planning.test_experiment import COMPARISON, EXPERIMENT, ROOT, write

SEEDS = list(range(12))


def trial(mean, deviation):
    return {"validation": {"accuracy": {"mean": mean, "deviation": deviation}}}


def tuning(relu=0.95):
    return {
        "variants": {"relu/learning_rate=0.1": trial(relu, 0.006), "swish/learning_rate=0.1": trial(0.96, 0.008)},
        "baselines": {},
    }


def reach(root, seeds=None, **changes):
    write(root, {**EXPERIMENT, "seeds": SEEDS, "evaluate_on": "test", "equivalence_margin": 0.02, **changes})
    plan = make_plan("trial", seeds=seeds, root=root, environment=Environment())
    return plan_reach(plan, root)[0]


def test_the_results_of_the_tuning_give_the_spread_and_the_room(tmp_path):
    assert reach(tmp_path).smallest_detectable is None
    write_json(tmp_path / "results/trial-tuning/metrics.json", tuning())
    reached = reach(tmp_path)
    low, high = reached.smallest_detectable
    assert 0.01 < low < high and reached.supported and reached.equivalent
    # The experiment may name another file, or the spread itself.
    write_json(tmp_path / "elsewhere.json", tuning(relu=0.99))
    (warning,) = reach(tmp_path, tuning={"evidence": "elsewhere.json", "budget": "four rates"}).warnings
    assert "cannot be supported" in warning and "0.0100" in warning
    wide = reach(tmp_path, tuning={"spread": 0.05})
    assert wide.smallest_detectable[0] > high and not wide.equivalent
    # A selection of seeds is what is judged, and too few are warned of.
    few = reach(tmp_path, seeds=[0, 1])
    assert not few.supported and reach_lines([few])[-2].startswith("warning: p: 2 seeds")
    # Comparisons of which the same is said share a line.
    first, *_ = reach_lines([wide, replace(wide, name="q", sentences=["q: " + wide.sentences[0].removeprefix("p: ")])])
    assert first == f"p, q: {wide.sentences[0].removeprefix('p: ')}"
    write_json(tmp_path / "results/trial-tuning/metrics.json", {"champions": {}})
    with pytest.raises(InputError, match="variants"):
        reach(tmp_path)


def test_results_of_an_earlier_round_give_the_spread_that_a_tuning_of_one_seed_has_not(tmp_path):
    one_seed = tuning()
    for variant in one_seed["variants"].values():
        variant["validation"]["accuracy"]["deviation"] = None
    write_json(tmp_path / "results/trial-tuning/metrics.json", one_seed)
    assert reach(tmp_path).smallest_detectable is None
    earlier = {"variants": {"relu": trial(0.90, 0.006), "swish": trial(0.90, 0.008)}, "baselines": {}}
    write_json(tmp_path / "results/trial/metrics.json", earlier)
    reached = reach(tmp_path)
    write_json(tmp_path / "results/trial-tuning/metrics.json", tuning())
    # The room is that of the tuning in both.
    assert reached == reach(tmp_path) and reached.smallest_detectable is not None


def test_a_margin_of_the_comparison_replaces_that_of_the_experiment(tmp_path):
    write_json(tmp_path / "results/trial-tuning/metrics.json", tuning())
    own = {**COMPARISON, "equivalence_margin": 0.03}
    assert "±0.03" in reach(tmp_path, comparisons=[own]).sentences[0]
    assert "±0.02" in reach(tmp_path).sentences[0]


def test_rows_are_those_of_the_evaluated_split(tmp_path, monkeypatch):
    import reread.planning.reach

    seen = []
    original = reread.planning.reach.reachable
    monkeypatch.setattr(
        reread.planning.reach, "reachable", lambda *given: seen.append(given[4]["p"]) or original(*given)
    )
    reach(tmp_path)
    reach(tmp_path, parameters={"preprocessing": {"digits": {"rows_per_class": 5}}})
    plan = make_plan("trial", root=tmp_path, environment=Environment())
    folder = tmp_path / plan.environment.prepared / plan.variants["relu"].prepared_key
    write_json(folder / DESCRIPTION, {"splits": {"train": [0, 50], "validation": [50, 90], "test": [90, 137]}})
    plan_reach(plan, tmp_path)
    assert seen == [266, 50, 47]


def test_a_data_set_that_is_not_ingested_is_named(tmp_path):
    (tmp_path / "data.manifest.json").write_text(json.dumps({"schema": 1, "datasets": {}}))
    with pytest.raises(InputError, match="reread data digits"):
        reach(tmp_path)


def test_what_the_default_experiment_can_decide():
    """Six seeds show a large difference of texts, and equivalence of images, where too little is left to be gained."""
    reaches = {
        reached.name: reached
        for reached in plan_reach(make_plan("default", root=ROOT, environment=Environment()), ROOT)
    }
    assert all(reached.refuted for reached in reaches.values())
    assert {name for name, reached in reaches.items() if reached.supported} == {"averages", "hierarchy"}
    assert {name for name, reached in reaches.items() if reached.equivalent} == {"swish-beta"}
    assert "cannot be supported" in reaches["swish-beta"].warnings[0]


def test_the_default_experiment_trains_on_900_documents_and_is_judged_on_all_of_the_test_split():
    variant = make_plan("default", root=ROOT, environment=Environment()).variants["han"]
    with open(ROOT / "data/docstrings/documents.jsonl", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    split = np.array([SPLITS.index(document["split"]) for document in documents], np.uint8)
    labels, ids = ([document[name] for document in documents] for name in ("labels", "id"))
    _, splits = choose_rows("docstrings", split, labels, ids, variant.preprocessing["rows_per_class"])
    sizes = {name: end - start for name, (start, end) in splits.items()}
    assert sizes == dict(zip(SPLITS, (900, 611, 611), strict=True))
