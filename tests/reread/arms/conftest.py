"""A claim on two branches of a small repository, and the means to run it in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.storage.source import ROOT
from tasks import DEFAULTS
from tests import forks
from tests.conftest import clean_environment

# Writes the score of a seed, after whatever the test inserts.
SCRIPT = """\
import json, os, pathlib, signal, subprocess, sys, time
seed, out = int(sys.argv[1]), pathlib.Path(sys.argv[2])
(out / "began").open("a").write("x")
# here
score = BASE + [0.000, 0.003, -0.002, 0.001, -0.001, 0.002][seed % 6]
(out / "metrics.json").write_text(json.dumps({"accuracy": score}))
"""
RUN = f"{sys.executable} train.py {{seed}} {{out}}"


def as_before_import() -> dict[str, str]:
    """The variables of a user, also where this process or the one before it has imported ``tasks``, which sets some."""
    return {name: value for name, value in clean_environment().items() if DEFAULTS.get(name) != value}


@dataclass
class Claim:
    """A folder with claim.yaml and a repository of the script: the treatment's branch is better by 0.025."""

    folder: Path

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / ".reread/runs").glob("[0-9a-f]*"))

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.repository), *arguments], capture_output=True, text=True, check=True,
            env={**clean_environment(), "GIT_CONFIG_GLOBAL": os.devnull},
        ).stdout.strip()  # fmt: skip

    def commit(self, inserted: str = "", branch: str = "main", base: float = 0.8, **files: str) -> str:
        """Commit the script of a branch, with lines inserted before the score is written; return the commit."""
        self.git("checkout", "-q", "-B", branch)
        text = SCRIPT.replace("# here", inserted).replace("BASE", str(base))
        for name, content in {"train.py": text, **files}.items():
            (self.repository / name).write_text(content)
        self.git("add", "--all")
        self.git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", branch)
        return self.git("rev-parse", "HEAD")

    def write(self, **values: Any) -> None:
        """Write claim.yaml; a value of None leaves its name out."""
        usual = {
            "repository": "repository",
            "run": RUN,
            "arms": {"control": {"git": "main"}, "treatment": {"git": "idea"}},
            "metric": "accuracy",
            "margin": 0.005,
            "seeds": 6,
        }
        content = {name: value for name, value in {**usual, **values}.items() if value is not None}
        (self.folder / "claim.yaml").write_text(yaml.safe_dump(content))

    def environment(self, **changed: str) -> dict[str, str]:
        """Return the variables of a user, with some changed, and this checkout's source."""
        return {**as_before_import(), "PYTHONPATH": str(ROOT), **changed}

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``reread claim claim.yaml`` in the folder."""
        # Where the tests run in the background, the shell has SIGINT ignored, also by what they start.
        return subprocess.Popen(
            [sys.executable, "-m", "reread", "claim", "claim.yaml", *options], cwd=self.folder, text=True,
            env=self.environment(**environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def run(self, *options: str, code: int = 0, **environment: str) -> tuple[str, str]:
        """Run the command to its end, check its exit code, and return its stdout and stderr."""
        words = ["-m", "reread", "claim", "claim.yaml", *options]
        # No library that the command imports reads what differs from the usual: PATH and the numbers of threads.
        done = forks.run(words, self.folder, self.environment(**environment), clean_environment(), timeout=120)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def states(self) -> dict[tuple[str, int], str]:
        """Return the state of each run by arm and seed."""
        runs = json.loads(self.run("--dry-run", "--json")[0])["runs"]
        return {(run["arm"], run["seed"]): run["state"] for run in runs}


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    claim = Claim(tmp_path)
    claim.repository.mkdir()
    claim.git("init", "-q")
    claim.commit()
    claim.commit(branch="idea", base=0.825)
    claim.git("checkout", "-q", "main")
    claim.write()
    return claim
