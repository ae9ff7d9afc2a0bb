"""Judge whether a change makes a command slower:  python .ci/speed.py BASE [--blocks N]

Both revisions judge docs/claim.yaml, one after the other, N times: a block is a pair. The margin is 10 %. The exit code
is that of `reread judge --exit-code`; with 1 the change is slower by more than the margin.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = (sys.executable, "-m", "reread", "judge", "docs/claim.yaml")
CLAIM = ("--claim", "The change is faster than its base.", "--treatment", "change", "--control", "base")
JUDGE = (*CLAIM, "--margin", "10%", "--metric", "seconds", "--lower-is-better", "--paired", "--exit-code")


def seconds(tree: Path) -> float:
    start = time.perf_counter()
    subprocess.run(COMMAND, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(prog="python .ci/speed.py", description=__doc__.splitlines()[0])
    parser.add_argument("base", metavar="BASE", help="the revision that the checkout is compared with")
    parser.add_argument("--blocks", type=int, default=12, metavar="N", help="pairs of timings (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base, scores = Path(folder) / "base", Path(folder) / "seconds.csv"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", base, options.base], cwd=ROOT, check=True)
        try:
            trees = {"base": base, "change": ROOT}
            for tree in trees.values():  # compiles the modules and fills the cache of files
                seconds(tree)
            rows = [(arm, block, seconds(tree)) for block in range(options.blocks) for arm, tree in trees.items()]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", base], cwd=ROOT, check=True)
        with open(scores, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("arm", "seed", "score"), *rows])
        command = [sys.executable, "-m", "reread", "judge", scores, *JUDGE]
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
