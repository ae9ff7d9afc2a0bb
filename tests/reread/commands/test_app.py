"""The command itself: subcommands by file, help, usage errors, completion, and a quick start."""

import json
import os
import re
import subprocess
import sys

import pytest

from reread.commands.app import REGISTRY, display_name, main
from reread.storage.source import ROOT
from tests.rooms import copy_rooms

COMMANDS = {
    "adopt", "compare", "data", "doctor", "evaluate", "jobs", "predict", "preprocess", "prune", "publish",
    "reconcile", "reproduce", "run", "serve", "study", "train", "ui",
}  # fmt: skip
ADDED = '''"""Print a number.

reread added --number 3
"""

from typing import Annotated

import typer


def command(number: Annotated[int, typer.Option(min=1)] = 1) -> None:
    print(number)
'''


def python(*arguments, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_each_file_is_a_subcommand_with_help_and_an_example(reread):
    assert set(REGISTRY.available()) >= COMMANDS
    listed = reread("--help")
    assert "..." not in listed.split("Commands:")[1]  # no first line of help is cut off
    for name in REGISTRY.available():
        words = display_name(name)
        assert f"\n  {words} " in listed
        assert f"reread {words}" in reread(*words.split(), "--help").split("Options:")[0].split("[OPTIONS]")[1]


def test_a_new_file_is_a_new_subcommand(tmp_path):
    copy_rooms(tmp_path, "reread", "tasks")
    (tmp_path / "reread/commands/added.py").write_text(ADDED)
    assert python("-m", "reread", "added", "--number", "3", cwd=tmp_path).stdout == "3\n"
    assert re.search(r"added +Print a number\.", python("-m", "reread", "--help", cwd=tmp_path).stdout)
    (tmp_path / "reread/commands/added.py").write_text(ADDED.replace("def command", "def comand"))
    done = python("-m", "reread", "added", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "reread/commands/added.py defines no command" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["comare"], "'compare'"),
        (["run", "--experimnt", "tiny"], "--experiment"),
        (["run", "--seed", "one"], "--seed"),
        (["serve", "--limit", "0"], "--limit"),
        (["predict", "text"], "--data"),
        (["reproduce"], "RUN"),
        (["study", "gatse"], "'gates'"),
    ],
)
def test_a_usage_error_is_one_line(reread, arguments, named):
    assert named in reread(*arguments, code=2)


START = """
import sys
from reread.commands.app import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print([name for name in ("torch", "mlflow", "prefect", "pandas", "scipy") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["compare"], ["run", "--help"], ["prune", "--help"]])
def test_start_up_imports_no_large_library(arguments, tmp_path):
    done = python("-c", START, *arguments, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("reread prepr", ["preprocess"]),
        ("reread run --experiment tin", ["tiny"]),
        ("reread run --experiment tiny --variant gru", ["gru-flat"]),
        ("reread data dig", ["digits"]),
        ("reread study ga", ["gates"]),
    ],
)
def test_names_are_completed(words, completed, shared_folder):
    asked = {"_REREAD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = python("-m", "reread", cwd=shared_folder, PYTHONPATH=str(ROOT), **asked)
    assert done.stdout.split() == completed, done.stderr


def test_the_studies_are_listed_and_have_common_options(reread):
    assert "gates " in reread("study") and "gates" in json.loads(reread("study", "--json"))
    assert "--option" in reread("study", "--help")
    assert "'documents'" in reread("study", "gates", "--option", "document=3", code=2)


def test_data_is_verified_and_printed_as_json(reread):
    versions = json.loads(reread("data", "digits", "--json"))
    manifest = json.loads((ROOT / "data.manifest.json").read_text())
    assert versions == {"digits": manifest["datasets"]["digits"]["version"]}


def test_a_terminal_without_the_letters_of_a_table_gets_their_escapes(shared_folder):
    arguments = ["run", "--experiment", "tiny", "--dry-run"]
    done = python("-m", "reread", *arguments, cwd=shared_folder, PYTHONPATH=str(ROOT), PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\\u2501" in done.stdout, done.stderr


def test_an_end_of_file_in_a_command_is_no_interrupt(monkeypatch):
    def ends() -> None:
        raise EOFError("no data left")

    monkeypatch.setattr("reread.commands.doctor.command", ends)
    with pytest.raises(EOFError, match="no data left"):
        main(["doctor"])
