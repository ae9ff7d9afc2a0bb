"""Jobs that are made here, trained elsewhere, and reported here again."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from storage.errors import InputError
from tasks import jobs
from tasks.jobs import elsewhere, machine, read_machine
from training.machine import machine as this_machine

GPU = {"torch": "2.11.0+cu130", "cuda": "13.0", "device": "NVIDIA H200", "kernels": "extension 0123456789abcdef"}
REGISTERED = """
import json
from tasks.tracking import open_tracking

client = open_tracking().client
experiment = client.get_experiment_by_name("away").experiment_id
print(json.dumps({
    "runs": {run.data.tags["run_key"]: [run.info.status, run.data.metrics.get("test.accuracy"), run.data.tags["torch"]]
             for run in client.search_runs([experiment], "tags.run_key != ''")},
    "models": {one.tags["variant"]: one.tags["run_key"] for one in client.search_model_versions("")},
}))
"""


def write(path: Path, value) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_the_machine_of_a_file_stands_for_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "machine", machine.__wrapped__)
    monkeypatch.delenv("REREAD_MACHINE", raising=False)
    assert jobs.machine() == this_machine() and not elsewhere()
    monkeypatch.setenv("REREAD_MACHINE", str(write(tmp_path / "machine.json", GPU)))
    assert jobs.machine() == GPU and elsewhere()
    monkeypatch.setenv("REREAD_MACHINE", str(write(tmp_path / "machine.json", this_machine())))
    assert not elsewhere()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "is not valid JSON"),
        ([], "does not name torch and device"),
        ({"torch": "2.11.0"}, "does not name torch and device"),
        ({**GPU, "devise": "x"}, "did you mean 'device'?"),
        ({**GPU, "kernels": None}, "has cuda and kernels neither of a GPU"),
        ({**GPU, "cuda": None}, "has cuda and kernels neither of a GPU"),
        ({"torch": "2.11.0", "device": "AVX2"}, "has cuda and kernels neither of a GPU"),
    ],
)
def test_a_file_that_no_machine_wrote_is_refused(tmp_path, given, said):
    with pytest.raises(InputError, match="REREAD_MACHINE=.*machine.json") as refused:
        read_machine(write(tmp_path / "machine.json", given))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InputError, match="is missing; write it on the machine that trains"):
        read_machine(tmp_path / "none.json")


def test_runs_of_another_machine_come_back_without_their_weights(project):
    """Made here, trained there by torch alone, reported here: nothing is trained or predicted again."""
    root = project.directory
    tiny = yaml.safe_load((root / "experiments/tiny.yaml").read_text())
    variants = {name: tiny["variants"][name] for name in ("han", "gru-flat")}
    pairs = [{**tiny["pairs"][0], "name": name, "worse": name} for name in ("gru-flat", "nb-svm")]
    away = {**tiny, "variants": variants, "pairs": pairs}
    away["parameters"]["training"]["maximum_epochs"] = 2
    (root / "experiments/away.yaml").write_text(yaml.safe_dump(away))
    here = json.loads(project.run("python", "-m", "training.machine").stdout)
    write(root / "machine.json", {**here, "torch": "2.11.0+elsewhere"})

    def reread(*command: str, code: int = 0):
        return project.run("python", "-m", *command, code=code, REREAD_MACHINE="machine.json")

    done = reread("tasks.jobs", "--experiment", "away")
    files = done.stdout.split()
    assert len(files) == 4 and all((root / file).is_file() for file in files)
    (prepared,) = (path.name for path in (root / "prepared").iterdir() if not path.name.startswith("."))
    assert f"4 jobs; beside them and the source travel: prepared/{prepared}" in done.stderr
    assert (
        "REREAD_MACHINE names another machine"
        in reread("tasks.train", "--experiment", "away", "--variant", "han", code=2).stderr
    )
    assert (
        "run `python -m tasks.jobs --experiment away`"
        in reread("tasks.evaluate", "--experiment", "away", code=2).stderr
    )

    # There: the command that needs torch alone, a job at a time, and one that is broken among them.
    write(root / "broken.json", {})
    done = project.run("python", "-m", "training", files[0], "broken.json", *files[1:], code=2)
    assert done.stdout.count("stopped by") == 4
    assert "error: broken.json: 'run_key' must be there" in done.stderr
    assert done.stderr.count("was made for another machine (torch 2.11.0+elsewhere and not ") == 4
    runs = [(root / file).parent for file in files]
    assert "has neither an evaluation of the validation and test split" not in done.stderr
    kept = runs[0]
    for run in runs[1:]:
        shutil.move(run / "best.safetensors", run / "weights elsewhere")
    refused = reread("tasks.evaluate", "--experiment", "away", code=2).stderr
    assert f"run `python -m evaluation --test {runs[1].relative_to(root)}` where its weights are" in refused
    for run in runs[1:]:
        shutil.move(run / "weights elsewhere", run / "best.safetensors")
    evaluated = project.run("python", "-m", "evaluation", "--test", *(str(run.relative_to(root)) for run in runs))
    folders = [root / line for line in evaluated.stdout.split()]
    assert len(folders) == 4

    # Home again.
    for run in runs:
        for file in ("last.safetensors", *(["best.safetensors"] if run != kept else [])):
            (run / file).unlink()
    predictions = {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()}
    done = reread("tasks.evaluate", "--experiment", "away")
    assert {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()} == predictions
    assert all(len(list((run / "evaluation").iterdir())) == 1 for run in runs)
    report = root / "reports/away"
    metrics = json.loads((report / "metrics.json").read_text())
    verdicts = json.loads((report / "verdicts.json").read_text())["verdicts"]
    assert [one["worse"] for one in verdicts] == ["gru-flat", "nb-svm"] and len(verdicts[1]["differences"]) == 2
    assert set(metrics["baselines"]["docstrings"]) == {"tf-idf", "nb-svm"}

    # MLflow has every run; of the models those alone whose weights came and who are the best of their variant.
    jobs_there = {run.name: json.loads((run / "job.json").read_text()) for run in runs}
    best = {name: about["seeds"][str(about["best_seed"])]["run_key"] for name, about in metrics["variants"].items()}
    there = {name: key for name, key in best.items() if key == kept.name}
    found = json.loads(project.run("python", "-c", REGISTERED).stdout)
    accuracy = {key: metrics["variants"][job["variant"]]["seeds"][str(job["seed"])]["test"]["accuracy"]
                for key, job in jobs_there.items()}  # fmt: skip
    assert {key: (status, value) for key, (status, value, _) in found["runs"].items()} == {
        key: ("FINISHED", pytest.approx(value)) for key, value in accuracy.items()
    }
    # What it really ran on stands in the tags.
    assert {torch for *_, torch in found["runs"].values()} == {here["torch"]}
    assert found["models"] == there
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("weights are missing")]
    assert all((f"runs/{key}/best.safetensors" in told) == (name not in there) for name, key in best.items())
    assert (report / "attention.html").is_file() == ("han" in there)
