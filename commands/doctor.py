"""What is there, what is missing, and the command that mends it.

python -m commands.doctor [--thorough]      with any Python from 3.9 up; no package is needed

Exit code 0 where all that is required is there, 1 where something is missing.
"""

import argparse
import sys

from commands.diagnosis import MISSING, OK, OPTIONAL, Finding, examine

COLOURS = {OK: "\033[32m", MISSING: "\033[1;31m", OPTIONAL: "\033[33m"}
PLAIN = "\033[0m"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m commands.doctor", description="What is there and what is missing.")
    parser.add_argument("--thorough", action="store_true", help="read all of data/ and compare its sha256")
    findings = examine(parser.parse_args().thorough)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(line(finding, width, sys.stdout.isatty()))
    missing = sum(finding.state == MISSING for finding in findings)
    print("\nall that is required is there" if not missing else f"\n{missing} missing: run the commands above in order")
    return 1 if missing else 0


def line(finding: Finding, width: int, coloured: bool) -> str:
    """One finding; the command that mends it stands below."""
    state = f"{finding.state:<8}"
    if coloured:
        state = f"{COLOURS[finding.state]}{state}{PLAIN}"
    mend = f"\n{'':<8}  {'':<{width}}  -> {finding.mend}" if finding.mend else ""
    return f"{state}  {finding.name:<{width}}  {finding.found}{mend}"


if __name__ == "__main__":
    sys.exit(main())
