"""`make audit`: vulnerabilities are listed; without an index that answers it says so and goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CLEAN = {"name": "sound", "version": "1", "vulns": []}
HOLED = {"name": "holed", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "own", "skip_reason": "not in the index"}


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        (json.dumps({"dependencies": [CLEAN, UNKNOWN]}), 0, ["1 of 2"]),
        (json.dumps({"dependencies": [CLEAN, HOLED]}), 1, ["holed 2", "CVE-1", "in 3"]),
        (json.dumps({"dependencies": [UNKNOWN]}), 0, ["not audited"]),
        ("", 0, ["not audited"]),
    ],
)
def test_what_pip_audit_finds_decides(tmp_path, printed, code, said):
    program = tmp_path / "pip-audit"
    program.write_text(f"#!{sys.executable}\nprint({printed!r})\nraise SystemExit({1 if 'CVE' in printed else 0})\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/audit.py", program, "a.lock"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (code, "") and all(part in done.stdout for part in said)
