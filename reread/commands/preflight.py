"""Check Python and the virtual environment before there are packages; `make doctor` starts it, then `reread doctor`.

Standard library alone, also for Python 3.9. Exit code 1, and the command that fixes it, where something is missing.
"""

import importlib.util
import os
import re
import sys

OLDEST = (3, 11)


def problem(venv: str = ".venv") -> "tuple[str, str] | None":
    """Return the first problem and the command that fixes it, or None."""
    made, settings = os.path.isdir(venv), os.path.join(venv, "pyvenv.cfg")
    version, command = sys.version_info[:2], None
    if os.path.isfile(settings):
        with open(settings) as file:
            text = file.read()
        match = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", text, re.MULTILINE)
        version = (int(match.group(1)), int(match.group(2))) if match else version
        command = re.search("^command *= *(.+)", text, re.MULTILINE)
    if version < OLDEST:
        removed = f"rm -rf {venv}; " if made else ""
        fix = removed + "apt-get install python3.11 python3.11-venv (or: pyenv install 3.11), then make install"
        return "Python {}.{} is found, 3.11 or later is needed".format(*version), fix
    if not made and importlib.util.find_spec("ensurepip") is None:
        return "the module venv is missing", "apt-get install python{}.{}-venv".format(*version)
    if not made:
        return "the virtual environment is not made yet", "make install"
    if not os.access(os.path.join(venv, "bin", "python"), os.X_OK):
        return f"{venv}/bin/python does not start", f"rm -rf {venv} && make install"
    # Its programs start the Python, and the code, of the folder that it was made in.
    if command and not command.group(1).endswith(os.path.abspath(venv)):
        return f"{venv} was made in another folder: this one was moved or copied", f"rm -rf {venv} && make install"
    if not os.path.isfile(os.path.join(venv, "installed")):
        return "the packages are not all installed", "make install"
    return None


if __name__ == "__main__":
    fault = problem()
    if fault:
        print("missing   {}\n          -> {}".format(*fault))
        sys.exit(1)
