"""The package without extras judges scores; a command that needs more says in one line what is missing."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("reread", "flows", "tasks", "models", "cuda_ext")
JUDGE = ("judge", str(ROOT / "docs/scores.csv"), "--control", "relu", "--margin", "0.005", "--metric", "accuracy")


def needed(requirements: list[str], extra: str = "") -> set[str]:
    """Return the distributions that these requirements bring here, with all that they require in turn."""
    distributions: set[str] = set()
    waiting = [(text, extra) for text in requirements]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = requirement.name.lower()
        if name not in distributions and name != "reread":
            distributions.add(name)
            for inner in importlib.metadata.requires(name) or ():
                waiting += [(inner, inner_extra) for inner_extra in ("", *requirement.extras)]
    return distributions


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> Path:
    """A virtual environment with a wheel of this project and what that requires without extras; its `reread`."""
    folder = tmp_path_factory.mktemp("light")
    source = folder / "source"
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("_build", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("reread-*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    site = next((folder / "venv/lib").glob("python*/site-packages"))
    (about,) = importlib.metadata.distributions(name="reread", path=[str(site)])
    for name in needed(about.requires or []):
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:  # scripts stand outside of site-packages
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), site / file)
    return folder / "venv/bin/reread"


def reread(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)


def test_scores_are_judged_and_the_verdict_is_verified(light, tmp_path):
    done = reread(light, tmp_path, *JUDGE, "--output", "verdict")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "verdict/verdict.json").read_text())
    assert [claim["verdict"] for claim in document["claims"]] and (tmp_path / "verdict/report.html").is_file()
    verified = reread(light, tmp_path, "verify", "verdict/verdict.json")
    assert verified.returncode == 0 and "all values agree" in verified.stdout


CLAIM = """\
arms:
  new: {sources: [], run: "echo '{\\"accuracy\\": 0.9{seed}}' > {out}/metrics.json"}
  old: {sources: [], run: "echo '{\\"accuracy\\": 0.8{seed}}' > {out}/metrics.json"}
treatment: new
metric: accuracy
margin: 0.005
seeds: 6
"""


def test_commands_are_run_as_the_arms_of_a_claim(light, tmp_path):
    (tmp_path / "claim.yaml").write_text(CLAIM)
    done = reread(light, tmp_path, "claim", "claim.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["claims"][0]["verdict"] == "supported"


def test_help_lists_all_commands(light, tmp_path):
    done = reread(light, tmp_path, "--help")
    assert done.returncode == 0 and "publish" in done.stdout


@pytest.mark.parametrize("command", ["run", "evaluate", "data"])
def test_a_command_that_needs_an_extra_says_so_in_one_line(light, tmp_path, command):
    for name in ("experiments", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    before = sorted(tmp_path.iterdir())
    done = reread(light, tmp_path, command)
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert "is not installed: `pip install 'reread[run]'`" in done.stderr
    assert sorted(tmp_path.iterdir()) == before
