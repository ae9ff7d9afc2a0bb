"""A docstring -> the prose of its description.

Sections of parameters, results, errors or examples are removed, as are doctests, code blocks, grid tables, formulas,
links and field lists. Markup of reStructuredText and Markdown is removed from the remaining words. Three styles are
supported: numpydoc's underlined titles, Google's "Args:", and Sphinx's ":param x:".
"""

import inspect
import re

DROPPED_SECTION = re.compile(
    r"(?:other |keyword )?(?:parameter|argument|arg|kwarg)s?|(?:call )?signatures?|returns?|return values?|yields?"
    r"|receives|raises?|warns|errors|exceptions|inputs?|outputs?|attributes|properties|methods|functions|classes|options"
    r"|contents|index|routine listings|examples?|(?:example )?usage|see also|references?|citation|authors?|todo",
    re.IGNORECASE,
)
PROSE_DIRECTIVES = ("note", "warning", "tip", "important", "caution", "hint", "attention")

UNDERLINE = re.compile(r"([-=~^*#\"])\1{2,}\s*$")
GOOGLE_TITLE = re.compile(r"([A-Z][A-Za-z ]{2,20}):\s*$")
MARKDOWN_TITLE = re.compile(r"#{1,6}\s+(.*)")
FIELD = re.compile(r":[A-Za-z][\w ,.*\\\[\]|]*:(?!`)")
DIRECTIVE = re.compile(r"\.\.\s+([\w:-]+)::\s*(.*)")
ITEM = re.compile(r"(?:[-*+•]|\(?\w{1,2}[.)]|#\.)\s+(?=\S)")
TABLE = re.compile(r"[-=+|~ ]{3,}$|[|+].*[|+]$")

INLINE = (
    (re.compile(r":(?:math|eq)(?::\w+)?:`[^`]*`|(?<!\w)\$[^$\n]{1,200}\$(?!\w)"), "FORMULA"),
    (re.compile(r":(?:cite|footcite)(?::\w+)?:`[^`]*`|\[[\w#*]+\]_|(?:https?|ftp)://\S+|www\.\S+"), " "),
    # A role shows its title, or the last part of the name that it points to.
    (re.compile(r":[A-Za-z][\w:+.-]*:`[!~]?([^`<]+?)\s*<[^>`]*>`"), r"\1"),
    (re.compile(r":[A-Za-z][\w:+.-]*:`[!~]?(?:[\w.]*\.)?([^`]*)`"), r"\1"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}"), r"\1"),
    (re.compile(r"``?~?([^`]*)``?_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*?(?=[^\s*])([^*\n]+?)(?<=\S)\*\*?(?![\w*])"), r"\1"),
    (re.compile(r"%\([^)]*\)s|\|[A-Za-z][\w ]*\||</?[A-Za-z][^>]*>"), " "),
    (re.compile(r"Read more in the User Guide\."), " "),
    (re.compile(r"\s+([.,;:!?])(?=\s|$)"), r"\1"),
)
SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.!?][\"')\]]*(?=\s+[\"'(\[]?[A-Z]|\s*$)")


def count_sentences(text: str) -> int:
    """Count sentences cautiously: marks that end a sentence before a capital or at the end of the text."""
    return len(SENTENCE_END.findall(text))


def is_dropped(title: str) -> bool:
    return DROPPED_SECTION.fullmatch(title.rstrip(":")) is not None


def describe(docstring: str) -> str:
    """Return the prose of a docstring's description: one line per paragraph, separated by empty lines."""
    lines = inspect.cleandoc(docstring).splitlines()
    paragraphs: list[str] = []
    current: list[str] = []
    dropping = False  # in a numpydoc section that is removed
    deeper_than: int | None = None  # in a block that is removed: its lines are indented deeper than this
    fenced = doctest = False

    def finish() -> None:
        paragraphs.append(" ".join(current))
        current.clear()

    for number, line in enumerate(lines):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if text.startswith(("```", "~~~")):
            finish()
            fenced = not fenced
        elif fenced:
            continue
        elif not text:
            finish()
            doctest = False
        elif deeper_than is not None and indent > deeper_than:
            continue
        elif text.startswith((">>>", "In [")) or doctest:
            doctest, deeper_than = True, None
        elif UNDERLINE.match(text) or TABLE.match(text):
            deeper_than = None
            finish()
        elif UNDERLINE.match(following) and len(following) >= min(len(text), 3):
            finish()
            dropping, deeper_than = is_dropped(text), None
        elif dropping:
            continue
        elif (title := GOOGLE_TITLE.match(text)) and is_dropped(title[1]):
            finish()
            deeper_than = indent
        elif title := MARKDOWN_TITLE.match(text):
            finish()
            dropping, deeper_than = is_dropped(title[1]), None
        elif FIELD.match(text):
            finish()
            deeper_than = indent
        elif directive := DIRECTIVE.match(text):
            finish()
            kept = directive[1] in PROSE_DIRECTIVES
            deeper_than = None if kept else indent
            current.extend([directive[2]] if kept and directive[2] else [])
        elif text.startswith(".. "):
            finish()
            deeper_than = indent
        else:
            deeper_than = None
            if item := ITEM.match(text):
                finish()
                text = text[item.end() :]
            if text.endswith("::"):
                deeper_than = indent
                text = text[:-1]
            current.append(text)
    finish()
    return "\n\n".join(paragraph for paragraph in map(clean_line, paragraphs) if is_prose(paragraph))


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph has words, and more than the few that introduced a removed block."""
    words = [word for word in paragraph.split() if any(letter.isalpha() for letter in word)]
    return len(words) > (4 if paragraph.endswith(":") else 0)


def clean_line(text: str) -> str:
    """Remove the markup of reStructuredText and Markdown, formulas and links from a paragraph."""
    for pattern, replacement in INLINE:
        text = pattern.sub(replacement, text)
    return " ".join(text.replace("\\", " ").split())
