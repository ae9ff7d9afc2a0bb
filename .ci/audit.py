"""Compare locked packages with an index of known vulnerabilities:  python .ci/audit.py PIP_AUDIT LOCK...

Exit code 1 where a package has one. Where no index answers, one line says so, and the exit code is 0.
"""

import json
import subprocess
import sys


def main(program: str, *locks: str) -> int:
    options = [option for lock in locks for option in ("--requirement", lock)]
    command = [program, "--disable-pip", "--progress-spinner", "off", "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        print("note: no index of known vulnerabilities answers: the packages were not audited")
        return 0
    known = [(package, vulnerability) for package in audited for vulnerability in package["vulns"]]
    for package, vulnerability in known:
        mend = " or ".join(vulnerability["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, mended in {mend}")
    print(f"{len(audited)} of {len(packages)} packages audited, {len(known)} known vulnerabilities")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
