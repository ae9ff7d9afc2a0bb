"""`reread try` on a small table: interrupted, finished, and with another network added."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import yaml

from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import Document, TextRows
from tests.reread.commands.conftest import make_folder

TOPICS = {"fruit": "apple pear plum", "metal": "iron zinc lead"}
COMMAND = ("-m", "reread", "try", "topics", "--seeds", "2", "--epochs", "4", "--minutes", "0", "--variant")


def add_topics(root):
    documents = []
    for number in range(80):
        label, words = number % 2, list(TOPICS.values())[number % 2].split()
        split = ("train", "train", "validation", "test")[number // 2 % 4]
        documents.append(Document(f"d{number}", (label,), split, f"We saw {words[number % 3]} on day {number}."))
    about = About(classes=tuple(TOPICS), source="made by a test", licence="none")
    add_data_set("topics", TextRows(about, documents), root / "data", root / "data.manifest.json")


TRY = """
import json, reread
tried = reread.try_("topics", seeds=2, epochs=4, minutes=0, variants=["gru_flat"])
print(json.dumps(tried["verdict"].to_dict()))
"""
# Of each run that is evaluated on test, what Python has of its predictions.
PREDICTIONS = """
import json, reread
runs = reread.runs("topics")
for key, run in runs[runs["test.accuracy"].notna()].iterrows():
    table = reread.predictions(key)
    right = (table["label"] == table["prediction"]).mean()
    assert abs(right - run["test.accuracy"]) < 1e-6, key
    assert abs(table[["probability.fruit", "probability.metal"]].sum(axis=1) - 1).max() < 1e-5
print(json.dumps(table["label"].to_dict()))
"""


def report(root, name):
    return json.loads((root / "reports/topics" / name).read_text())


def test_a_try_is_interrupted_finished_and_added_to(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    add_topics(root)
    files = root / "experiments/topics-tuning.yaml", root / "experiments/topics.yaml"
    # Where the tests run in the background, the shell has SIGINT ignored, also by what they start.
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "word-average"],
        cwd=root, env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not list(root.glob("runs/*/history.csv")):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGSTOP)
    for options in ((), ("--folds", "3")):  # another process would write other experiments of these names
        command = ("python", "-m", "reread", "try", "topics", "--variant", "gru_flat", *options)
        refused = project.run(*command, code=2).stderr
        assert f"process {process.pid}" in refused and len(refused.splitlines()) == 1
    for number in (signal.SIGINT, signal.SIGCONT):
        os.kill(process.pid, number)
    process.communicate(timeout=120)
    assert [path.exists() for path in files] == [True, False]
    # The tuning stands for itself: what it tunes is not there yet.
    project.run("python", "-m", "reread", "run", "--dry-run", "--experiment", "topics-tuning")

    project.run("python", *COMMAND, "word-average")
    (verdict,) = report(root, "verdicts.json")["verdicts"]
    assert verdict["verdict"] == "inconclusive"
    # A grid of two values has edges alone, and there was no time to go beyond them.
    assert {"network.embedding_dim", "training.learning_rate"} <= {flag.split()[4] for flag in verdict["flags"]}
    assert report(root, "plan.json")["tuning"]["experiment"] == "topics-tuning"

    said = project.run("python", "-c", TRY).stdout
    assert json.loads(said.splitlines()[-1]) == {"network-or-baseline": "inconclusive"}
    assert list(report(root, "metrics.json")["variants"]) == ["gru-flat", "word-average"]
    assert list(yaml.safe_load(files[1].read_text())["variants"]) == ["word-average", "gru-flat"]

    items = json.loads(project.run("python", "-c", PREDICTIONS).stdout)
    numbers = [number for number in range(80) if number // 2 % 4 == 3]
    assert items == {f"d{number}": list(TOPICS)[number % 2] for number in numbers}


def test_a_dry_run_takes_the_metric_names_the_load_and_writes_nothing(reread, tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path))
    (tmp_path / "data").unlink()
    add_topics(tmp_path)

    def files():
        return sorted(path for path in tmp_path.rglob("*") if ".locks" not in path.parts)

    before = files()
    assert "'macro_f2'" in reread("try", "topics", "--metric", "macro_f2", "--dry-run", code=2)
    monkeypatch.setattr("os.getloadavg", lambda: (99.5, 0.0, 0.0))
    said = reread("try", "topics", "--metric", "macro_f1", "--dry-run", "--variant", "word-average")
    assert "in macro F1" in said and "load average is 99.5" in said
    assert "10 runs (4 to tune, 6 of 6 seeds)" in said and "evaluation" in said and "baselines" in said
    assert "--folds 5 tests all 80 rows" in said and tempfile.gettempdir() not in said
    # What was timed beside other work is not taken for slower again.
    with monkeypatch.context() as slow:
        slow.setattr("tasks.estimate.baseline_seconds", lambda folder: 50.0)
        slow.setattr("tasks.estimate.share_of_each", lambda *about: 0.5)
        said = reread("try", "topics", "--dry-run", "--variant", "word-average")
    assert re.search(r"baselines +1 min 40 s\n", said) and "take 50% of the CPU time that a run" in said
    # Starts of runs take turns with other work: at the most they take twice as long.
    starts = []
    for share in (0.5, 0.1):
        with monkeypatch.context() as slow:
            slow.setattr("tasks.estimate.share_of_each", lambda *about, share=share: share)
            said = reread("try", "topics", "--dry-run", "--variant", "word-average", "--seeds", "3")
        starts += re.findall(r"starts, reports +(.*)\n", said)
    assert len(starts) == 2 and len(set(starts)) == 1
    assert "3 seeds decide nothing" in said and "smallest detectable difference by enough seeds: about" in said
    estimate = json.loads(reread("try", "topics", "--metric", "macro_f1", "--dry-run", "--json", "-v", "word-average"))
    assert (estimate["to_tune"], estimate["to_compare"]) == (4, 6) and estimate["seconds"] > 0
    assert estimate["files"] == ["experiments/topics-tuning.yaml", "experiments/topics.yaml"]

    for wrong, said in (("0", "folds is 0"), ("2", "folds is 2"), ("81", "folds is 81")):
        assert said in reread("try", "topics", "--folds", wrong, "--dry-run", code=2)
    assert "--minutes" in reread("try", "topics", "--folds", "4", "--minutes", "3", code=2)
    options = "--folds", "3", "--seeds", "2", "--variant", "word-average", "--dry-run"
    said = reread("try", "topics", *options)
    assert "6 runs (0 to tune, 6 of 2 seeds and 3 folds)" in said and "80 rows, all tested in turn" in said
    assert "2 seeds decide nothing" in said and "--folds 5" not in said
    estimate = json.loads(reread("try", "topics", *options, "--json"))
    assert (estimate["to_tune"], estimate["to_compare"], estimate["further_seconds"]) == (0, 6, 0)
    assert estimate["files"] == ["experiments/topics-folds.yaml"]
    assert files() == before


def test_a_try_by_folds_tunes_nothing_and_tests_all_rows(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    add_topics(root)
    options = "--seeds", "2", "--epochs", "2", "--variant", "word-average"
    refused = project.run("python", "-m", "reread", "try", "topics", "--folds", "41", *options, code=2).stderr
    assert "class 'fruit' is in 40 rows" in refused and len(refused.splitlines()) == 1
    said = project.run("python", "-m", "reread", "try", "topics", "--folds", "3", *options).stdout
    assert "the split that the data have is not used" in said and "No model is registered" in said
    assert [path.name for path in root.glob("experiments/topics*")] == ["topics-folds.yaml"]
    reports = root / "reports/topics-folds"
    metrics, plan = (json.loads((reports / name).read_text()) for name in ("metrics.json", "plan.json"))
    assert metrics["folds"] == plan["folds"] == 3 and not plan["tuning"]
    (verdict,) = json.loads((reports / "verdicts.json").read_text())["verdicts"]
    assert (verdict["kind"], verdict["items"], verdict["control"]) == ("two networks", 80, "tf-idf")
