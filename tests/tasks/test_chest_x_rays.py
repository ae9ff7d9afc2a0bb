"""A subset of chest X-rays from its file to verdicts, figures by class and class activation maps."""

import json
import shutil

import numpy as np
import yaml

from reread.evaluation.baselines import evaluate_baseline
from reread.evaluation.records import RunRecord
from reread.evaluation.report import evaluate_experiment
from reread.evaluation.run import evaluate_run
from reread.planning.resolve import make_plan
from reread.preprocessing.ingest import ingest
from reread.preprocessing.manifest import load_raw_rows
from reread.preprocessing.prepare import prepare
from reread.preprocessing.sources.chestxray14 import BOXES, FINDINGS
from reread.storage.files import write_json
from reread.storage.prepared import SPLITS, open_prepared
from reread.storage.source import ROOT
from reread.training.__main__ import attempt
from reread.training.processes import SINGLE_PROCESS
from tests.reads import every_test_split

IMAGES = 60


def write_subset(folder) -> None:
    """Images whose upper half is brighter where the first finding is there, with a box of it."""
    generator = np.random.default_rng(0)
    labels = (generator.random((IMAGES, 14)) < 0.3).astype(np.uint8)
    images = generator.integers(0, 100, (IMAGES, 64, 64), np.uint8)
    images[:, :32] += (100 * labels[:, :1, None]).astype(np.uint8)
    names = [f"{row:08d}_000.png" for row in range(IMAGES)]
    folder.mkdir(parents=True)
    arrays = {"images": images, "labels": labels, "files": names, "label_names": FINDINGS}
    np.savez(folder / "chestxray14_1089_64.npz", patients=np.arange(IMAGES) // 2, **arrays)
    boxes = "\n".join(f"{name},Atelectasis,0,0,1024,512" for name, row in zip(names, labels, strict=True) if row[0])
    (folder / BOXES).write_text("Image Index,Finding Label,Bbox [x,y,w,h],,,\n" + boxes)


def test_the_experiment_runs_from_the_subset_to_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_subset(tmp_path / "mirror/chestxray14")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    experiment = yaml.safe_load((ROOT / "experiments/chestxray.yaml").read_text())
    experiment["variants"] = {
        "small-relu": {"model": "densenet", "network": {"depth": 10, "growth_rate": 4}},
        "densenet-121": {"model": "densenet_imagenet", "network": {"depth": "13", "growth_rate": 4}},
    }
    experiment["seeds"] = [1]
    experiment["comparisons"] = [
        comparison for comparison in experiment["comparisons"] if "swish" not in comparison["name"]
    ]
    experiment["defaults"]["training"] |= {"max_epochs": 2}
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/chestxray.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))

    ingest("chestxray14", mirror=tmp_path / "mirror")
    plan = make_plan("chestxray")
    folders = {key: str(prepare(about["data"], about["settings"])) for key, about in plan.preparations().items()}
    records = []
    for job in plan.jobs(folders):
        write_json(tmp_path / "job.json", job.to_json())
        assert attempt(tmp_path / "job.json", None, False, SINGLE_PROCESS) == 0
        run, prepared = tmp_path / job.run_directory, tmp_path / job.prepared
        with every_test_split():
            evaluation = evaluate_run(run, prepared, plan.splits)
        records.append(RunRecord(job.variant, job.data, job.seed, run, prepared, evaluation))
        assert job.training["objective"] == {"name": "chexnet"}
    data = open_prepared(prepared)
    report = tmp_path / "report"
    with every_test_split():
        raw = load_raw_rows(data, SPLITS)
        labels = {split: data.labels[data.rows(split)] for split in raw}
        linear = evaluate_baseline("linear", raw, labels, data.task, data.classes)
        evaluate_experiment(plan.to_json(), records, {"chestxray14": {"linear": linear}}, report)

    metrics = json.loads((report / "metrics.json").read_text())
    assert metrics["variants"]["small-relu"]["score"] == "macro_auroc"
    assert metrics["baselines"]["chestxray14"]["linear"]["parameters"] == 14 * (16 * 16 + 1)
    verdicts = json.loads((report / "verdicts.json").read_text())["verdicts"]
    assert [verdict["name"] for verdict in verdicts] == ["depth", "pixels"]
    assert all(verdict["sentence"] for verdict in verdicts)
    page = (report / "class-activation.html").read_text()
    assert "16 x 16 places" in page and "pointing" in page and "with 1 box of it" in page
    assert 'href="class-activation.html"' in (report / "report.html").read_text()
