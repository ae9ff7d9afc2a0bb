"""A subset of chest X-rays from its file to verdicts, figures by class and class activation maps."""

import json

import numpy as np
import yaml

from preprocessing.sources.chestxray14 import BOXES, FINDINGS

SCRIPT = """
from planning.plan import make_plan
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.preprocess import preprocess
from tasks.train import train

ingest.fn("chestxray14", mirror="mirror")
plan = make_plan("chestxray")
prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
for job in plan.jobs(prepared):
    train.fn(job)
evaluate.fn(plan.to_json(), prepared)
"""


def test_the_experiment_runs_from_the_subset_to_the_report(project):
    root = project.directory
    generator = np.random.default_rng(0)
    count = 60
    labels = (generator.random((count, 14)) < 0.3).astype(np.uint8)
    images = generator.integers(0, 100, (count, 64, 64), np.uint8)
    images[:, :32] += (100 * labels[:, :1, None]).astype(np.uint8)
    names = np.array([f"{row:08d}_000.png" for row in range(count)])
    (root / "mirror/chestxray14").mkdir(parents=True)
    np.savez(
        root / "mirror/chestxray14/chestxray14_1089_64.npz",
        images=images, labels=labels, files=names, patients=np.arange(count) // 2, label_names=FINDINGS,
    )  # fmt: skip
    boxes = "\n".join(f"{name},Atelectasis,0,0,1024,512" for name, row in zip(names, labels, strict=True) if row[0])
    (root / "mirror/chestxray14" / BOXES).write_text("Image Index,Finding Label,Bbox [x,y,w,h],,,\n" + boxes)
    path = root / "experiments/chestxray.yaml"
    experiment = yaml.safe_load(path.read_text())
    experiment["variants"] = {
        "small-relu": {"model": "densenet", "network": {"depth": 10, "growth_rate": 4}},
        "densenet-121": {"model": "densenet_imagenet", "network": {"depth": "13", "growth_rate": 4}},
    }
    experiment["seeds"] = [1]
    experiment["comparisons"] = [one for one in experiment["comparisons"] if "swish" not in one["name"]]
    experiment["defaults"]["training"] |= {"max_epochs": 2}
    path.write_text(yaml.safe_dump(experiment))

    project.run("python", "-c", SCRIPT)

    report = root / "reports/chestxray"
    metrics = json.loads((report / "metrics.json").read_text())
    assert set(metrics["variants"]) == {"small-relu", "densenet-121"}
    assert metrics["variants"]["small-relu"]["score"] == "macro_auroc"
    assert metrics["baselines"]["chestxray14"]["linear"]["parameters"] == 14 * (16 * 16 + 1)
    verdicts = json.loads((report / "verdicts.json").read_text())["verdicts"]
    assert [one["name"] for one in verdicts] == ["depth", "pixels"]
    assert all(one["sentence"] for one in verdicts)
    page = (report / "class-activation.html").read_text()
    assert "16 x 16 places" in page and "pointing" in page and "with 1 box of it" in page
    assert 'href="class-activation.html"' in (report / "report.html").read_text()
    job = json.loads(next((root / "runs").glob("*/job.json")).read_text())
    assert job["training"]["objective"] == {"name": "chexnet"}
