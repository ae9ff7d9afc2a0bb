"""Jobs that are made here, trained elsewhere, and reported here again."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from reread.training.machine import machine as this_machine

# In one process what would be four commands: two refusals, the report, and what MLflow then has.
REPORT = """
import json
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError
from tasks.evaluate import evaluate
from reread.tracking.runs import open_tracking
from tasks.train import train

plan, more = make_plan("away"), make_plan("away", ["han"], [7])
prepared = {key: about["directory"] for key, about in plan.preparations().items()}
both = make_plan("away", seeds=[0, 7])
for attempt in (lambda: train.fn(more.jobs()[0]), lambda: evaluate.fn(both, prepared)):
    try:
        attempt()
    except InputError as error:
        print("refused:", error)
evaluate.fn(plan, prepared)
client = open_tracking().client
experiment = client.get_experiment_by_name("away").experiment_id
print(json.dumps({
    "runs": {run.data.tags["run_key"]: [run.info.status, run.data.metrics.get("test.accuracy"), run.data.tags["torch"]]
             for run in client.search_runs([experiment], "tags.run_key != ''")},
    "models": {version.tags["variant"]: version.tags["run_key"] for version in client.search_model_versions("")},
}))
"""


def write(path: Path, value) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_runs_of_another_machine_come_back_without_their_weights(project):
    """Made here, trained there by torch alone, reported here: nothing is trained or predicted again."""
    root = project.directory
    tiny = yaml.safe_load((root / "experiments/tiny.yaml").read_text())
    variants = {name: tiny["variants"][name] for name in ("han", "gru-flat")}
    comparisons = [{**tiny["comparisons"][0], "name": name, "control": name} for name in ("gru-flat", "nb-svm")]
    parameters = {**tiny["parameters"], "preprocessing": {"docstrings": {"rows_per_class": 20}}}
    away = {**tiny, "variants": variants, "comparisons": comparisons, "seeds": [0], "parameters": parameters}
    away["parameters"]["training"]["max_epochs"] = 2
    (root / "experiments/away.yaml").write_text(yaml.safe_dump(away))
    here = this_machine()
    write(root / "machine.json", {**here, "torch": "2.11.0+elsewhere"})

    made = project.run("python", "-m", "reread", "jobs", "--experiment", "away", REREAD_MACHINE="machine.json")
    files = made.stdout.split()
    assert len(files) == 2 and all((root / file).is_file() for file in files)
    (prepared,) = (path.name for path in (root / "prepared").iterdir() if not path.name.startswith("."))
    assert f"2 jobs; copy them there with the source and prepared/{prepared}" in made.stderr

    # There: commands that need torch and the like alone, and one job that is broken among the others.
    write(root / "broken.json", {})
    trained = project.run("python", "-m", "reread.training", files[0], "broken.json", *files[1:], code=2)
    assert trained.stdout.count("stopped by") == 2
    assert "error: broken.json: 'run_key' must be" in trained.stderr
    assert trained.stderr.count("was made for another machine (torch 2.11.0+elsewhere and not ") == 2
    runs = {Path(file).parent.name: json.loads((root / file).read_text()) for file in files}
    assert {tuple(job["checkout"]) for job in runs.values()} == {(project.git("rev-parse", "HEAD").strip(), False)}
    evaluated = project.run("python", "-m", "reread.evaluation", "--test", *(f"runs/{key}" for key in runs))
    folders = [root / line for line in evaluated.stdout.split()]
    assert len(folders) == 2

    # Home again, with the weights of HAN alone.
    key_of = {job["variant"]: key for key, job in runs.items()}
    for key in runs:
        shutil.rmtree(root / f"runs/{key}/checkpoints")
        if key != key_of["han"]:
            (root / f"runs/{key}/best.safetensors").unlink()
    predictions = {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()}
    script = REPORT
    *lines, tracked = project.run("python", "-c", script, REREAD_MACHINE="machine.json").stdout.splitlines()
    assert {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()} == predictions
    assert all(len(list((root / f"runs/{key}/evaluation").glob("*/metrics.json"))) == 1 for key in runs)
    refused = [line for line in lines if line.startswith("refused:")]
    assert "han seed 7 is not trained, and REREAD_MACHINE names another machine" in refused[0]
    assert "2 of 4 runs of 'away' are not trained" in refused[1]
    assert "run `reread jobs --experiment away`" in refused[1]

    # The report is whole, with a baseline in a pair.
    metrics = json.loads((root / "reports/away/metrics.json").read_text())
    verdicts = json.loads((root / "reports/away/verdicts.json").read_text())["verdicts"]
    assert [verdict["control"] for verdict in verdicts] == ["gru-flat", "nb-svm"] and len(
        verdicts[1]["scores"]["treatment"]
    ) == 1
    assert set(metrics["baselines"]["docstrings"]) == {"tf-idf", "nb-svm", "char-svm"}
    assert (root / "reports/away/attention.html").is_file()

    # MLflow has every run, and what it really ran on; one line says of which no model is registered.
    expected = {
        key: [
            "FINISHED",
            metrics["variants"][job["variant"]]["seeds"][str(job["seed"])]["test"]["accuracy"],
            here["torch"],
        ]
        for key, job in runs.items()
    }
    tracked = json.loads(tracked)
    assert {key: [status, pytest.approx(value), torch] for key, (status, value, torch) in expected.items()} == tracked[
        "runs"
    ]
    # The baselines are models too.
    assert tracked["models"]["han"] == key_of["han"] and "gru-flat" not in tracked["models"]
    (told,) = [line for line in lines if line.startswith("weights are missing")]
    assert f"gru-flat seed 0 (runs/{key_of['gru-flat']}/best.safetensors)" in told
    assert "han seed" not in told
