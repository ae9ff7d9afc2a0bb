"""No function of cuda_ext/ has more than 120 lines and no file more than 600, in CUDA C++ and in Python."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cuda_ext import build

LONGEST_FUNCTION, LONGEST_FILE = 120, 600
BLANKED = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:[^\n\\]|\\.)*", re.S | re.M
)
# What opens a brace without being a function.
OTHERS = re.compile(r"(namespace|struct|class|enum|union|extern)\b")


def cuda_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the head, the first line and the lines of each function outside other functions."""
    text = BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    braces, outer = [], 0
    for place, character in enumerate(text):
        if character == "{":
            begin = max(text.rfind(end, 0, place) for end in ";{}") + 1
            head = text[begin:place].strip()
            named = re.sub(r"^template\s*<[^{]*?>\s*(?=struct|class)", "", head)
            function = "(" in named and not OTHERS.match(named)
            outer += function
            braces.append((head, text.index(head, begin) if head else place, function))
        elif character == "}":
            head, begin, function = braces.pop()
            outer -= function
            if function and not outer:
                yield head, text.count("\n", 0, begin) + 1, text.count("\n", begin, place) + 1


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from cuda_functions(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def sources() -> list[Path]:
    kinds = (".cu", ".cuh", ".cpp", ".h", ".py")
    return sorted(path for path in build.SOURCES.rglob("*") if path.suffix in kinds and "_build" not in path.parts)


def test_no_function_and_no_file_is_too_long():
    long, counted = [], 0
    for path in sources():
        name = path.relative_to(build.SOURCES)
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONGEST_FILE:
            long.append(f"{name}: {lines} lines")
        for head, line, lines in functions(path):
            counted += 1
            if lines > LONGEST_FUNCTION:
                long.append(f"{name}:{line}: {' '.join(head.split())[-60:]}: {lines} lines")
    assert counted > 400
    assert not long, "\n".join(long)


def test_a_long_function_is_found_whatever_is_around_it():
    body = "  f({1, 2});  // }\n" * 121
    text = "#define A { \\\n {\nnamespace a {\n"
    text += f'template <int n>\nstruct B {{\n  void b(int x) {{\n{body}  }}\n}};\nauto s = "{{";\n'
    text += f"template <typename T>\n__global__ void c(T* x)\n{{\n  const auto d = [&] {{\n{body}  }};\n}}\n}}\n"
    spans = [(re.search(r"\w+(?=\()", head)[0], line, lines) for head, line, lines in cuda_functions(text)]
    assert spans == [("b", 6, 123), ("c", 131, 127)]
