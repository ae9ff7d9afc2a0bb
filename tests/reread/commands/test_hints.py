"""A damaged or missing file: the printed line names what mends it, and after that the same command ends well."""

import json
import re
import shutil
from pathlib import Path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def alter(metrics: Path) -> None:
    """Give an evaluation another accuracy, and no digests that would tell."""
    content = json.loads(metrics.read_text())
    content["test"]["accuracy"], content["test"]["right"] = 0.99, 99
    metrics.write_text(json.dumps(content))
    metrics.with_name("digests.json").unlink()


def test_each_hint_leads_on(copy_of_finished, prefect_api):
    """All damage at once: each line is followed, until the command ends well."""
    project, root = copy_of_finished.using(prefect_api), copy_of_finished.directory
    runs = {json.loads(path.read_text())["variant"]: path.parent for path in root.glob("runs/*/job.json")}
    prepared = {json.loads(path.read_text())["name"]: path for path in root.glob("prepared/*/prepared.json")}
    evaluations = {variant: next(run.glob("evaluation/*/metrics.json")).parent for variant, run in runs.items()}
    verdicts, manifest = root / "reports/tiny/verdicts.json", root / "data.manifest.json"
    before = verdicts.read_text()
    verdicts.unlink()
    damaged = {
        evaluations["han"]: (alter, evaluations["han"] / "metrics.json"),
        evaluations["gru-flat"]: (cut, evaluations["gru-flat"] / "latency.json"),
        evaluations["densenet-swish"]: (Path.unlink, evaluations["densenet-swish"] / "test.npy"),
        runs["densenet-relu"]: (cut, runs["densenet-relu"] / "job.json"),
        prepared["digits"].parent: (cut, prepared["digits"]),
        prepared["docstrings"].parent: (Path.unlink, prepared["docstrings"]),
        manifest: (cut, manifest),
    }
    for damage, path in damaged.values():
        damage(path)
    mended = set()
    for _ in damaged:
        said = project.run("python", "-m", "reread", "run", "--experiment", "tiny", code=2).stderr
        (line,) = (line for line in said.splitlines() if line.startswith("error: "))
        if line.endswith(": restore it from git"):
            project.git("checkout", re.match(r"error: (\S+)", line)[1])
            mended.add(manifest)
        else:
            mended.add(root / re.search(r"remove (\S+) and (?:run again|evaluate the run again)", line)[1])
            shutil.rmtree(root / re.search(r"remove (\S+)", line)[1])
    project.run("python", "-m", "reread", "run", "--experiment", "tiny")
    assert mended == set(damaged) and verdicts.read_text() == before
