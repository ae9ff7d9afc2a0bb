"""Configuration of the documentation site: `make docs` builds it into site/, without a network."""

import ast
import functools
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

ROOMS = [
    "reread.interface",
    "reread.data",
    "reread.commands",
    "flows",
    "tasks",
    "reread.studies",
    "benchmarks",
    "reread.arms",
    "reread.tracking",
    "reread.planning",
    "reread.importers",
    "reread.preprocessing",
    "reread.training",
    "reread.evaluation",
    "reread.verdicts",
    "reread.batches",
    "models",
    "reread.goals",
    "reread.kinds",
    "cuda_ext",
    "reread.runtime",
    "reread.storage",
]

project = "reread"
author = "The reread authors"
copyright = "2026, The reread authors"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
# Each member of a registry has a class Settings: an annotation names its own.
suppress_warnings = ["ref.python"]
exclude_patterns = ["**/.reread"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 3

autodoc_default_options = {"members": True}
# Without this, methods that override a library's show the library's docstring, whose references do not resolve here.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

highlight_language = "none"
html_theme = "furo"
html_title = "reread"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["verdict.schema.json"]
html_show_sourcelink = False


def module_names(room: str) -> list[str]:
    """Return the dotted names of the modules of a room, the room itself first, programs left out.

    A room is a package or, as ``reread.interface``, one module.
    """
    folder = ROOT / room.replace(".", "/")
    files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    paths = [path.relative_to(ROOT).with_suffix("") for path in files]
    names = {".".join(part for part in path.parts if part != "__init__") for path in paths if path.name != "__main__"}
    return sorted(names)


def documented_names(room: str) -> set[str]:
    """Return the dotted names of the public functions and classes with a docstring, read from the source."""
    names = set()
    for module in module_names(room):
        path = ROOT / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if is_public and ast.get_docstring(node):
                names.add(f"{module}.{node.name}")
    return names


def write_api_pages(*_: object) -> None:
    """Write docs/api/ROOM.rst: one section per module, whose content autodoc takes from the docstrings."""
    folder = ROOT / "docs/api"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.rst"):
        if old.stem not in ROOMS:
            old.unlink()
    for room in ROOMS:
        sections = [f"{room}\n{'=' * len(room)}"]
        for name in module_names(room):
            title = "" if name == room else f"{name}\n{'-' * len(name)}\n\n"
            sections.append(f"{title}.. automodule:: {name}")
        text = "\n\n".join(sections) + "\n"
        page = folder / f"{room}.rst"
        # An unchanged page keeps its time, so that Sphinx does not read it again.
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def escape(line: str) -> str:
    """Return a line of plain text as reStructuredText: ``code`` stays, other markup characters are escaped."""
    parts = re.split(r"(``?[^`]+``?)", line)
    return "".join(part if part.startswith("`") else re.sub(r"[|*]|_(?=\W|$)", r"\\\g<0>", part) for part in parts)


def as_paragraphs(block: list[str]) -> list[str]:
    """Return a paragraph of a docstring as reStructuredText; aligned and indented lines become literal blocks."""
    first = block[0]
    if re.match(r"[-*] |:\w|\.\. |>>> ", first):
        return [*block, ""]
    if first.startswith(" "):
        return ["::", "", *block, ""]
    if any(re.search(r"\S {3,}\S", line) for line in block):
        return ["::", "", *(f"    {line}" for line in block), ""]
    inside = next((number for number, line in enumerate(block) if line.startswith(" ")), None)
    if inside is None:
        return [*map(escape, block), ""]
    # Lines that end in a colon introduce the indented rest; any other mixture is shown as it is written.
    if block[inside - 1].endswith(":"):
        return [*map(escape, block[:inside]), "", "::", "", *block[inside:], ""]
    return ["::", "", *(f"    {line}" for line in block), ""]


def read_as_plain_text(app, what, name, subject, options, lines: list[str]) -> None:
    """Turn a docstring of plain text into reStructuredText, in place."""
    text: list[str] = []
    for blank, block in itertools.groupby(lines, key=lambda line: not line.strip()):
        paragraph = [] if blank else list(block)
        if paragraph and paragraph[0].startswith(" ") and any(line.endswith("::") for line in text[-2:]):
            text += [*paragraph, ""]
        elif paragraph:
            text += as_paragraphs(paragraph)
    lines[:] = text


def show_functions_of_steps() -> None:
    """Let the modules of tasks define plain functions: autodoc takes a Step for a value, and leaves values out."""
    import tasks.step

    @functools.wraps(tasks.step.step)
    def step(task_run_name):
        return lambda function: function

    tasks.step.step = step


def setup(app) -> None:
    show_functions_of_steps()
    app.connect("config-inited", write_api_pages)
    app.connect("autodoc-process-docstring", read_as_plain_text)
