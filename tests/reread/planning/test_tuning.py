"""The choices of a tuning, beside the settings of the experiment that it tuned, and jobs for each of its trials."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from reread.commands.jobs import plans_of_trials
from reread.planning.environment import Environment
from reread.planning.experiment import merged
from reread.planning.resolve import make_plan
from reread.planning.tuning import all_epochs, chosen_lines, edges, other_settings, published, refuse_untuned, untuned
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.source import ROOT
from tests.damage import damages
from tests.reread.planning.test_experiment import EXPERIMENT, write

GRID = {"training": {"learning_rate": [1.0e-05, 0.1]}, "network": {"growth_rate": [4, 6]}}
SEED = {"epochs": 30, "best_epoch": 12, "ended": "schedule completed"}
# Of the trials in the order of the grid; the last one is chosen.
SCORES = (0.5, 0.6, 0.7, 0.8)


def plan_of(root, variants, folder="results", grid=GRID):
    """Write an experiment, its tuning and what the tuning found, and return the plan of the experiment."""
    write(root, {**EXPERIMENT, "variants": variants})
    write(root, {"title": "Tune", "tunes": "trial", "seeds": [9], "grid": grid}, name="trial-tuning")
    plan, tuning = (make_plan(name, root=root, environment=Environment()) for name in ("trial", "trial-tuning"))
    tuned = {
        name: {"chosen": trials[-1], "trials": dict(zip(trials, SCORES, strict=True))}
        for name, trials in tuning.trials.items()
    }
    write_json(root / folder / "trial-tuning/plan.json", tuning.record())
    measured = {trial: {"seeds": {"9": SEED}} for trials in tuning.trials.values() for trial in trials}
    write_json(root / folder / "trial-tuning/metrics.json", {"variants": measured, "tuned": tuned})
    return plan


def settings_of(learning_rate, growth_rate):
    return {"network": {"growth_rate": growth_rate}, "training": {"learning_rate": learning_rate}}


def relu(learning_rate, growth_rate):
    settings = settings_of(learning_rate, growth_rate)
    return {**EXPERIMENT["variants"], "relu": {"model": "densenet", "data": "digits", **settings}}


@pytest.mark.parametrize(
    ("learning_rate", "growth_rate", "expected"),
    [(0.1, 6, None), (1.0e-05, 6, "0.6000 on validation"), (0.1, 5, "not tried")],
)
@pytest.mark.parametrize("folder", ["results", "reports"])
def test_settings_that_tuning_did_not_choose_are_named(tmp_path, learning_rate, growth_rate, expected, folder):
    plan = plan_of(tmp_path, relu(learning_rate, growth_rate), folder)
    lines = [line for line in other_settings(plan, published(plan, tmp_path)) if "relu" in line]
    best = "the best trial has network.growth_rate=6, training.learning_rate=0.1 (0.8000 on validation)"
    here = f"network.growth_rate={growth_rate}, training.learning_rate={learning_rate}"
    assert lines == ([] if expected is None else [f"tuning: relu trains with {here} ({expected}), {best}"])


def test_settings_that_tuning_did_not_choose_are_not_published_without_a_reason(tmp_path):
    variants = {**relu(0.1, 6), "swish": merged(EXPERIMENT["variants"]["swish"], settings_of(0.1, 6))}
    refuse_untuned(plan_of(tmp_path, variants), tmp_path)
    plan = plan_of(tmp_path, variants | {"relu": relu(1.0e-05, 6)["relu"]})
    with pytest.raises(InputError, match=r"experiments/trial.yaml: relu trains with .*0.6000.*tuning.kept"):
        refuse_untuned(plan, tmp_path)
    (line,) = untuned(plan, published(plan, tmp_path))["relu"]
    assert line.startswith("trains with") and line.endswith("(0.8000 on validation)")
    kept = dataclasses.replace(plan, tuning={"kept": {"relu": "it is the paper's"}})
    refuse_untuned(kept, tmp_path)
    assert untuned(kept, published(kept, tmp_path))["relu"] == [f"{line}: it is the paper's"]
    with pytest.raises(InputError, match="tuning.kept"):
        refuse_untuned(dataclasses.replace(plan, tuning={"kept": {"other": "why"}}), tmp_path)


def test_a_grid_of_conditions_has_the_settings_that_its_tuning_chose(tmp_path):
    """The trials of each variant differ in a condition and share the tuned settings."""
    plan = plan_of(tmp_path, relu(1.0e-05, 6))
    conditions = {"training": {"max_epochs": [3, 4]}}
    write(tmp_path, {**EXPERIMENT, "comparisons": [], "variants": relu(1.0e-05, 6), "grid": conditions})
    grid = make_plan("trial", root=tmp_path, environment=Environment())
    assert set(grid.variants) != set(plan.variants)
    (line,) = (line for line in other_settings(grid, published(grid, tmp_path)) if "relu" in line)
    assert "learning_rate=1e-05 (0.6000 on validation)" in line
    # A setting that the grid itself varies is not held against the tuning.
    varied = {"network": {"growth_rate": [4, 6]}}
    write(tmp_path, {**EXPERIMENT, "comparisons": [], "variants": relu(0.1, 6), "grid": varied})
    grid = make_plan("trial", root=tmp_path, environment=Environment())
    assert not [line for line in other_settings(grid, published(grid, tmp_path)) if "relu" in line]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("results/*/plan.json")))
def test_each_published_experiment_says_why_its_settings_are_not_the_tuned_ones(name):
    plan = make_plan(name, root=ROOT)
    refuse_untuned(plan, ROOT)
    others = {line.split()[1] for line in other_settings(plan, published(plan, ROOT))}
    assert set(plan.tuning.get("kept", {})) == others  # no reason outlives what it explains


def test_an_experiment_without_a_tuning_has_nothing_to_say(tmp_path):
    plan = make_plan("trial", root=write(tmp_path), environment=Environment())
    assert other_settings(plan, published(plan, tmp_path)) == []


def tried(*rates):
    return [{"training.learning_rate": rate, "network.cell": "gru"} for rate in rates]


@pytest.mark.parametrize(
    ("rate", "rates", "end"),
    [
        (0.1, (0.01, 0.03, 0.1), "highest"),
        (0.01, (0.01, 0.03, 0.1), "lowest"),
        (0.2, (0.01, 0.03, 0.1), "highest"),  # beyond what was tried
        (0.03, (0.01, 0.03, 0.1), None),
        (0.1, (0.01, 0.1), None),  # two alternatives
    ],
)
def test_a_setting_at_the_edge_of_its_grid_is_named(rate, rates, end):
    here = {"training.learning_rate": rate, "network.cell": "gru"}
    assert edges(here, tried(*rates)) == ({"training.learning_rate": end} if end else {})


def test_more_epochs_are_no_edge_and_a_truth_value_is_no_number():
    assert edges({"training.max_epochs": 60}, [{"training.max_epochs": number} for number in (15, 30, 60)]) == {}
    assert edges({"training.amp_validation": True}, [{"training.amp_validation": number} for number in (2, 3, 4)]) == {}


@pytest.mark.parametrize(
    ("seeds", "epochs"),
    [
        ([SEED], None),
        ([{**SEED, "best_epoch": 28}], 30),
        ([{**SEED, "best_epoch": 28, "ended": "stopped early"}], None),
        ([{**SEED, "best_epoch": 30}, SEED, SEED], None),
        ([{**SEED, "best_epoch": 30}, SEED], 30),
        ([{"epochs": 30, "best_epoch": 30}], None),  # how it ended is not known
    ],
)
def test_a_trial_that_was_best_at_the_end_of_its_schedule(seeds, epochs):
    assert all_epochs(seeds) == epochs


def test_what_a_tuning_left_open_is_told_more_strictly_where_verdicts_are_withheld(tmp_path):
    variants = relu(0.1, 6)
    plan = plan_of(tmp_path, variants)
    choices = published(plan, tmp_path)
    assert set(untuned(plan, choices)) == {"swish"}  # which trains with other settings than were chosen
    strict = dataclasses.replace(plan, withhold_untuned=True)
    (lines,) = untuned(strict, {"relu": choices["relu"]}).values()
    assert [line.split(" that its")[0] for line in lines] == [
        "has the highest network.growth_rate",
        "has the highest training.learning_rate",
    ]
    between = dataclasses.replace(choices["relu"], trial="relu/none", epochs=30, settings={"relu/none": {}})
    assert untuned(plan, {"relu": between}) == {} and "30 epochs" in untuned(strict, {"relu": between})["relu"][0]


def test_the_choice_is_printed_as_an_experiment_has_it(tmp_path):
    plan = plan_of(tmp_path, EXPERIMENT["variants"])
    lines = chosen_lines(tmp_path / "results/trial-tuning", tmp_path)
    settings = {"network": {"growth_rate": 6}, "training": {"learning_rate": 0.1}}
    assert yaml.safe_load("\n".join(lines)) == dict.fromkeys(EXPERIMENT["variants"], settings)
    variants = {name: merged(given, settings) for name, given in EXPERIMENT["variants"].items()}
    assert other_settings(plan_of(tmp_path, variants), published(plan, tmp_path)) == []


def test_the_printed_choice_has_the_settings_that_the_tuning_fixes(tmp_path):
    """A tuning trains longer, and by another schedule, than the experiment that it tunes."""
    fixed = {"max_epochs": [60], "schedule": [{"name": "constant", "warmup_epochs": 2.0}], **GRID["training"]}
    grid = {**GRID, "training": fixed}
    plan = plan_of(tmp_path, EXPERIMENT["variants"], grid=grid)
    lines = chosen_lines(tmp_path / "results/trial-tuning", tmp_path)
    chosen = {"learning_rate": 0.1, "max_epochs": 60, "schedule": {"name": "constant", "warmup_epochs": 2.0}}
    assert yaml.safe_load("\n".join(lines))["relu"] == {"network": {"growth_rate": 6}, "training": chosen}
    # Written there, they are what the chosen trial trained with.
    pasted = yaml.safe_load("\n".join(lines))
    variants = {name: merged(given, pasted[name]) for name, given in EXPERIMENT["variants"].items()}
    again = plan_of(tmp_path, variants, grid=grid)
    trial = make_plan("trial-tuning", root=tmp_path).variants[published(again, tmp_path)["relu"].trial]
    assert again.variants["relu"].training == trial.training != plan.variants["relu"].training


def test_the_printed_choice_of_a_tuning_that_stands_for_itself_has_all_that_it_set(tmp_path):
    plan_of(tmp_path, EXPERIMENT["variants"])
    file = tmp_path / "results/trial-tuning/plan.json"
    write_json(file, {**json.loads(file.read_text()), "name": "alone"})
    printed = yaml.safe_load("\n".join(chosen_lines(file.parent, tmp_path)))
    write(tmp_path, {"title": "Alone", "seeds": [0], "variants": printed}, name="other")
    plan = make_plan("other", root=tmp_path, environment=Environment())
    tuning = make_plan("trial-tuning", root=tmp_path, environment=Environment())
    for name, variant in plan.variants.items():
        trial = tuning.variants[tuning.trials[name][-1]]
        assert (variant.network, variant.training, variant.data) == (trial.network, trial.training, trial.data)


@pytest.mark.parametrize("name", ["plan.json", "metrics.json"])
def test_a_damaged_report_of_a_tuning_is_refused(tmp_path, name):
    plan = plan_of(tmp_path, EXPERIMENT["variants"])
    refused = []
    for _ in damages(tmp_path / "results/trial-tuning" / name):
        try:
            choices = published(plan, tmp_path)
            other_settings(plan, choices)
            chosen_lines(tmp_path / "results/trial-tuning", tmp_path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 10 and "\n" not in "".join(refused)


def test_jobs_for_each_trial_need_a_grid_of_the_same_variants(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tmp_path, EXPERIMENT["variants"])
    write(
        tmp_path, {**EXPERIMENT, "variants": {"other": EXPERIMENT["variants"]["relu"]}, "comparisons": []}, name="other"
    )
    search = {"trials": 2, "seed": 0, "space": {"training": {"learning_rate": {"low": 0.01, "high": 0.1}}}}
    write(tmp_path, {"title": "Search", "tunes": "trial", "seeds": [9], "search": search}, name="search")
    with pytest.raises(InputError, match="has no trials of 'other'"):
        list(plans_of_trials(make_plan("other"), "trial-tuning"))
    with pytest.raises(InputError, match="name one with a grid"):
        list(plans_of_trials(plan, "search"))


def test_a_training_machine_chooses_as_the_report_of_the_tuning_does(project, prefect_api):
    """Jobs for each trial are written here; tuning, choice and training need no planning; here the report agrees."""
    project, root = project.using(prefect_api), project.directory
    tiny = yaml.safe_load((root / "experiments/tiny.yaml").read_text())
    names = ("densenet-relu", "densenet-swish")
    away = {
        **tiny,
        "variants": {name: tiny["variants"][name] for name in names},
        "comparisons": tiny["comparisons"][1:],
        "parameters": {
            "preprocessing": {"digits": {"rows_per_class": 20}},
            "training": {"max_epochs": 2},
            "models": {"densenet": {"network": tiny["parameters"]["models"]["densenet"]["network"]}},
        },
    }
    grid = {"training": {"learning_rate": [1.0e-05, 0.1]}}
    tuning = {"title": "Tune", "tunes": "away", "seeds": [100], "grid": grid}
    for name, content in (("away", away), ("away-tuning", tuning)):
        (root / f"experiments/{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def listed(name, *command, code=0):
        done = project.run("python", "-m", *command, code=code)
        (root / name).write_text(done.stdout)
        return done

    jobs = ("reread", "jobs", "--experiment")
    listed("tuning.txt", *jobs, "away-tuning")
    made = listed("jobs.txt", *jobs, "away", "--tuned-by", "away-tuning")
    assert "8 jobs; copy them there" in made.stderr  # two variants, two trials, two seeds

    choose = ("reread.evaluation.choose", "tuning.txt", "jobs.txt")
    assert "the run has not finished" in listed("chosen.txt", *choose, code=2).stderr
    project.run("python", "-m", "reread.training", "@tuning.txt")
    assert "is not evaluated: run `python -m reread.evaluation " in listed("chosen.txt", *choose, code=2).stderr
    folders = [str(Path(line).parent) for line in (root / "tuning.txt").read_text().splitlines()]
    project.run("python", "-m", "reread.evaluation", *folders)
    chosen = listed("chosen.txt", *choose)
    kept = [json.loads((root / line).read_text()) for line in chosen.stdout.splitlines()]
    assert sorted((job["variant"], job["seed"]) for job in kept) == [(name, seed) for name in names for seed in (0, 1)]

    lines = (root / "jobs.txt").read_text().splitlines()
    (root / "jobs.txt").write_text("\n".join(line for line in lines if "1e-05" not in (root / line).read_text()))
    assert "in one of the two lists alone" in listed("one.txt", *choose, code=2).stderr

    ended = project.run("python", "-m", "reread", "run", "--experiment", "away-tuning").stdout
    metrics = json.loads((root / "reports/away-tuning/metrics.json").read_text())
    trials = {name: metrics["tuned"][name]["chosen"] for name in names}
    assert {job["variant"]: job["trial"] for job in kept} == trials
    settings = {
        name: f"{name}: {{training: {{learning_rate: {trial.split('=')[1]}}}}}" for name, trial in trials.items()
    }
    assert "To train with these" in ended and all(line in ended for line in settings.values())
    for name in names:
        assert f"{trials[name]}: accuracy {metrics['tuned'][name]['trials'][trials[name]]:.4f}" in chosen.stderr
