"""Every file that training and evaluation reach is in a key by what they call of it, or a change of it changes no byte.

Each definition that a golden run calls is changed in turn. Where that changes no key, the golden run is repeated with a
change of the file.
"""

import ast
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reread.goals import module_of
from reread.storage.numeric import numeric_digest
from reread.storage.source import ROOT, closure
from tests.golden.cases import CASES
from tests.golden.data import WRITERS
from tests.golden.equivalent import source
from tests.rooms import copy_rooms

OPPOSITE = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def points(tree: ast.AST) -> list[ast.AST]:
    """The numbers and operators of some code that can be changed, in order; not those of annotations and messages."""
    nodes = []
    for node in ast.walk(tree):
        number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
        if (
            number
            or (isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE)
            or (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPPOSITE)
        ):
            nodes.append(node)
    return nodes


def change(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Compare):
        node.ops[0] = OPPOSITE[type(node.ops[0])]()
    else:
        node.op = OPPOSITE[type(node.op)]()


def mutants(path: Path, called: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yield each definition of a file that is called, or that is a constant, and the file's text after two changes of
    it: of the first of its ``points`` and of the last."""
    tree = ast.parse(path.read_bytes())
    for place, statement in enumerate(tree.body):
        lines = range(
            min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", []))]),
            statement.end_lineno + 1,
        )
        function = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        if isinstance(statement, ast.Import | ast.ImportFrom) or (function and not called & set(lines)):
            continue
        if points(statement):
            yield getattr(statement, "name", f"line {statement.lineno}"), *(changed(tree, place, n) for n in (0, -1))


def changed(tree: ast.Module, place: int, point: int) -> str:
    """Return the text of a file with a change in its statement number ``place``."""
    other = copy.copy(tree)
    other.body = [*tree.body]
    other.body[place] = copy.deepcopy(tree.body[place])
    change(points(other.body[place])[point])
    return ast.unparse(other)


# Of the data of both cases.
GOAL = module_of("single-label")


# An image network, and a reader of documents with averaged weights.
@pytest.mark.parametrize("case", ["densenet-swish", "han-average"])
def test_each_change_is_in_a_key_or_changes_no_byte(tmp_path, case):
    WRITERS[CASES[case].data](tmp_path / "data")
    modules = source(CASES[case])["modules"]
    named = [name for name in modules if ":" not in name]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.reread.storage.mutation", case, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        usual = json.loads(process.stdout.readline())
        lines: dict[str, set[int]] = {}
        for file, line in usual["called"]:
            lines.setdefault(file, set()).add(line)
        copied = tmp_path / "copy"
        copy_rooms(copied, "reread", "models", "cuda_ext")

        # What trains a run and what evaluates it, in one digest: half the time of two.
        computing = [*modules, "reread.evaluation.run", "reread.batches", GOAL]

        def key() -> str:
            return numeric_digest(computing, copied)

        before, silent, in_keys, in_none = key(), [], set(), {}
        for path in closure(["reread.training.run", "reread.evaluation.run", GOAL, *named]):
            file = path.relative_to(ROOT).as_posix()
            text = (copied / file).read_text()
            for name, first, last in mutants(path, lines.get(file, set())):
                (copied / file).write_text(first)
                if key() != before:
                    in_keys.add(file)
                else:
                    in_none.setdefault(file, []).append((name, last))
                (copied / file).write_text(text)
        for file, changes in in_none.items():
            name, text = changes[len(changes) // 2]
            process.stdin.write(json.dumps({"file": file, "source": text}) + "\n")
            process.stdin.flush()
            # A run that fails publishes nothing.
            if json.loads(process.stdout.readline()) not in (None, usual["digest"]):
                silent.append(f"{file}: {name}")
        process.stdin.close()
    assert not silent, "these changes are in no key and change a result"
    assert {
        "reread/training/step.py",
        "reread/storage/prepared.py",
        "models/__init__.py",
        "reread/goals/classification.py",
    } <= in_keys
    assert "reread/storage/locks.py" in in_none
