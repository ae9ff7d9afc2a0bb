"""DVC's stages, metrics, plots and remotes: all that runs depend on is known, and data.dvc is never rewritten."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from selenium.webdriver.support.ui import WebDriverWait

from reread.commands.publish import depends_on
from reread.planning import keys
from reread.planning.experiment import experiments
from reread.planning.keys import this_machine
from reread.planning.resolve import make_plan
from reread.planning.tuning import choices, tuning_name
from reread.storage.errors import InputError
from reread.storage.files import write_json
from tasks.dvc_cache import refuse_foreign_listing
from tasks.machine import main, refuse_other_machine
from tests.reread.tracking.comparison import browser, missing

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))
def test_the_page_of_plots_draws_without_a_network(project):
    project.run("python", "-m", "reread.evaluation.vega")
    project.run("dvc", "plots", "show")
    with browser() as driver:
        driver.get((project.directory / "dvc_plots/index.html").as_uri())
        drawn = WebDriverWait(driver, 60).until(
            lambda page: page.find_elements("css selector", ".vega-embed svg.marks")
        )
        assert len(drawn) >= 3
        assert "http" not in driver.execute_script("return [...document.scripts].map(script => script.src).join(' ')")


def test_metrics_are_few_and_a_change_of_machine_is_a_line(project):
    shown = json.loads(project.run("dvc", "metrics", "show", "--json").stdout)[""]["data"]
    (figures,) = (entry["data"] for entry in shown.values())
    variants = make_plan("default", root=ROOT).variants
    assert {name for scores in figures.values() if isinstance(scores, dict) for name in scores} >= set(variants)
    path = project.directory / "results/default/summary.json"
    summary = json.loads(path.read_text())
    summary["docstrings"]["han"] += 0.01
    path.write_text(json.dumps({**summary, "machine": "AVX2, torch 2.13.0"}))
    lines = project.run("dvc", "metrics", "diff").stdout.splitlines()
    assert len(lines) == 3 and "docstrings.han" in lines[1] and "AVX2" in lines[2]


def test_results_of_another_machine_are_refused_until_this_one_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(Path("results/machine.json"), {**this_machine(), "device": "AVX1"})
    with pytest.raises(InputError, match="device AVX1, here .*make repro"):
        refuse_other_machine()
    monkeypatch.setattr("sys.argv", ["machine"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (None, 0)
    refuse_other_machine()


@pytest.mark.parametrize("stage", ["ingest", "preprocess@digits"])
def test_nothing_is_made_on_another_machine_before_this_one_is_recorded(project, stage):
    write_json(project.directory / "results/machine.json", {**this_machine(), "device": "AVX1"})
    before = project.git("status", "--porcelain")
    refused = project.run("dvc", "repro", "--single-item", "--force", stage, code=None)
    assert refused.returncode != 0 and "device AVX1, here " in refused.stderr
    assert project.git("status", "--porcelain") == before
    assert not (project.directory / "prepared").exists()


@pytest.mark.parametrize(
    ("stage", "experiment", "old", "new"),
    [
        ("train", "default", "word_average, data: docstrings, training: {learning_rate: 0.02}", "learning_rate: 0.01"),
        ("experiment@imdb", "imdb", "    learning_rate: 0.005\n", "learning_rate: 0.006"),
    ],
)
def test_a_stage_trains_nothing_with_settings_that_publishing_would_refuse(project, stage, experiment, old, new):
    project.run("python", "-m", "tasks.machine")
    project.edit(f"experiments/{experiment}.yaml", old, re.sub("learning_rate: [0-9.]+", new, old))
    command = ("python", "-m", "tasks.train", "--experiment", experiment)
    refused = project.run(*command, code=2, DVC_STAGE=stage)
    assert "tuning.kept" in refused.stderr and f"reread run --experiment {experiment} --set variants." in refused.stderr
    assert not (project.directory / "prepared").exists() and not (project.directory / "runs").exists()
    assert project.git("status", "--porcelain", "results/test-reads.jsonl") == ""


def test_a_parameter_that_a_page_changes_is_in_its_file_and_not_tuned():
    shown = [setting for page in ROOT.glob("docs/*.md") for setting in re.findall(r" -S (\S+)", page.read_text())]
    assert shown
    for setting in shown:
        file, address = setting.split("=")[0].split(":")
        place = yaml.safe_load((ROOT / file).read_text())
        for name in address.split("."):
            place = place[name]
        tuned = choices(ROOT / "results" / tuning_name(Path(file).stem)).values()
        assert not any(address.endswith(path) for choice in tuned for path in choice.chosen)


def stage_dependencies() -> dict[str, list[str]]:
    """The files and folders that each stage which trains depends on."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    others = yaml.safe_load((ROOT / "results/dvc.yaml").read_text())["stages"]
    return {"train": stages["train"]["deps"], "experiment": others["experiment"]["do"]["deps"]}


@pytest.mark.parametrize("stage", ["train", "experiment"])
def test_dvc_knows_every_file_that_a_run_depends_on(stage):
    known = stage_dependencies()[stage]
    plan = make_plan("default", root=ROOT)
    for variant in plan.variants.values():
        kind = plan.data[variant.data]["kind"]
        for name in keys.source(variant.model, kind, *variant.settings())["files"]:
            assert any(name == path or name.startswith(f"{path}/") for path in known), f"{stage}: {name}"


def test_dvc_knows_every_published_experiment_and_runs_none_unasked(project):
    listed = yaml.safe_load((ROOT / "results/experiments.yaml").read_text())["experiments"]
    published = {path.parent.name for path in ROOT.glob("results/*/metrics.json")} - {"default"}
    assert published <= set(listed) <= set(experiments(ROOT))
    assert {name: about["of"] for name, about in listed.items()} == {name: depends_on(name) for name in listed}
    assert "imdb" not in project.run("dvc", "repro", "--dry").stdout
    asked = project.run("dvc", "repro", "--dry", "results/dvc.yaml:experiment@imdb").stdout
    assert "tasks.train --experiment imdb" in asked and "newsgroups20" not in asked


@pytest.mark.parametrize("poisoned", ["remote", "cache"])
@pytest.mark.parametrize("entry", ["relpath", "md5"])
def test_make_data_writes_no_file_that_a_remote_names_outside_of_data(project, tmp_path, entry, poisoned):
    """``dvc checkout`` writes to any relpath, and ``dvc fetch`` to any md5, of a list of files, also with verify."""
    (project.directory / ".venv").symlink_to(ROOT / ".venv")
    store, hook = tmp_path / "remotes/store", project.directory / ".git/hooks/post-checkout"
    project.run("dvc", "remote", "add", "--default", "store", str(store))
    project.run("dvc", "remote", "modify", "store", "verify", "true")
    project.run("dvc", "commit", "--quiet", "data.dvc")
    project.run("dvc", "push", "--quiet", "data.dvc")
    data, version = project.directory / "data", (project.directory / "data.dvc").read_bytes()
    for left in (data, project.directory / ".dvc/cache", project.directory / ".dvc/tmp"):
        shutil.rmtree(left)
    (listing,) = store.rglob("*.dir")
    files = json.loads(listing.read_text())
    if entry == "relpath":
        files.append({**files[0], "relpath": "../.git/hooks/post-checkout"})
    else:
        # From the folder of the objects to the project in the cache, and to ``tmp_path`` in the remote.
        files.append({"md5": "a/../../../../../.git/hooks/post-checkout", "relpath": "digits/more"})
        for path in (
            listing.parent.parent / "a",
            project.directory / ".dvc/cache/files/md5/a",
            tmp_path / ".git/hooks",
        ):
            path.mkdir(parents=True)
        (tmp_path / ".git/hooks/post-checkout").write_text("#!/bin/sh")
    listing.chmod(0o644)
    listing.write_text(json.dumps(files))
    if poisoned == "cache":
        cached = project.directory / ".dvc/cache/files/md5" / listing.parent.name / listing.name
        cached.parent.mkdir(parents=True)
        shutil.move(listing, cached)
    refused = project.run("make", "data", code=2)
    assert listing.name in refused.stderr and "Traceback" not in refused.stderr
    assert not hook.exists() and not data.exists()
    assert (project.directory / "data.dvc").read_bytes() == version


def test_a_list_of_files_leads_nowhere_although_data_dvc_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    (tmp_path / "data/linked").symlink_to(tmp_path)
    md5 = "0" * 32
    for wrong in (
        {"relpath": "../file", "md5": md5},
        {"relpath": "/etc/file", "md5": md5},
        {"relpath": "linked/file", "md5": md5},
        {"relpath": "file", "md5": "../file"},
    ):
        content = json.dumps([wrong]).encode()
        with pytest.raises(InputError, match="of the remote"):
            refuse_foreign_listing(content, f"{hashlib.md5(content).hexdigest()}.dir", "of the remote")


ADDED = """
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.prepared import SPLITS

rows = [Document(f"{split}-{n}", (n % 2,), split, f"Text {n} of {split}.") for split in SPLITS for n in range(4)]
add_data_set("mine", TextRows(About(("a", "b"), "a test", "none"), rows))
"""


def test_make_data_asks_the_remote_builds_what_is_missing_and_refuses_what_differs(project, tmp_path):
    (project.directory / ".venv").symlink_to(ROOT / ".venv")
    data, version = project.directory / "data", (project.directory / "data.dvc").read_bytes()
    kept = {path.relative_to(data): path.read_bytes() for path in data.rglob("*.*")}

    # No remote: built from the installed packages, the same bytes.
    shutil.rmtree(data / "digits")
    project.run("make", "data")
    assert {path.relative_to(data): path.read_bytes() for path in data.rglob("*.*")} == kept

    # A remote is asked first.
    project.run("dvc", "remote", "add", "--default", "store", str(tmp_path / "store"))
    project.run("dvc", "push", "--quiet", "data.dvc")
    shutil.rmtree(data)
    shutil.rmtree(project.directory / ".dvc/cache")
    assert "A\tdata" in project.run("make", "data").stdout.replace("       ", "\t")
    assert {path.relative_to(data): path.read_bytes() for path in data.rglob("*.*")} == kept

    # A byte of equal size: refused by name, and neither the file nor data.dvc is touched.
    labels = data / "digits/labels.npy"
    altered = bytearray(kept[labels.relative_to(data)])
    altered[-4] ^= 1
    labels.chmod(0o644)
    labels.write_bytes(altered)
    refused = project.run("make", "data", code=2)
    assert "data/digits/labels.npy" in refused.stderr and "make data" in refused.stderr
    assert labels.read_bytes() == bytes(altered)
    assert (project.directory / "data.dvc").read_bytes() == version

    # A data set that a user adds stops no run; what DVC is to prove waits until DVC is told of it.
    labels.write_bytes(kept[labels.relative_to(data)])
    project.run("python", "-c", ADDED)
    assert (
        "note: data/ is not what data.dvc describes: 'dvc add data' if you added" in project.run("make", "data").stdout
    )
    refused = project.run("make", "repro", code=2)
    assert "error: data/ is not what data.dvc describes: 'dvc add data' if you added" in refused.stderr
    assert (data / "mine/documents.jsonl").is_file() and (project.directory / "data.dvc").read_bytes() == version
    project.run("dvc", "add", "--quiet", "data")
    assert "data.dvc describes" not in project.run("make", "data").stdout
