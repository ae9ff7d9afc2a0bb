"""The docstring corpus: what is read of a docstring, what is left out, and the corpus of the pinned packages."""

import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import blingfire
import pytest

from reread.preprocessing.manifest import Manifest
from reread.preprocessing.raw_text import normalised_text
from reread.preprocessing.sources import docstrings
from reread.preprocessing.sources.descriptions import count_sentences, describe
from reread.preprocessing.sources.docstrings import MASKED
from reread.preprocessing.sources.duplicates import NearDuplicates
from reread.storage.errors import InputError

ROOT = Path(__file__).parents[3]
PROSE = [
    "The table keeps all that it has met. It grows when a new row comes. Nothing is ever taken out of it.",
    "Opens the book at its first page. A reader turns the pages one by one. Each of them is read once.",
    "Counts how often each key was seen before. The count starts at zero. Whoever asks later gets a copy.",
    "Waits until the scale has come to rest. Then it looks at the weight. Heavy ones go on the lowest shelf.",
]

NUMPYDOC = """Fit the model to the data.

    The model is fitted by `least squares`. See :class:`~models.linear.Ridge` and
    :ref:`the guide <guide-ridge>`, or https://example.org/ridge for more [1]_. The
    loss is :math:`\\alpha \\|w\\|^2`; it is **convex**, so x**2 and f(*args) stay.

    .. versionadded:: 1.2
       It was not there before.

    .. note::
        Scale the features first.

    - Items are kept,
    - each by itself.

    Use it like this::

        model.fit(x, y)

    >>> model.fit(x)
    Model()

    Parameters
    ----------
    x : array
        The data. It is not changed.

    Notes
    -----
    The cost grows with the number of rows.

    References
    ----------
    .. [1] A book.
    """

GOOGLE = """Send a message.

    Waits for an answer.

    Args:
        text: The message. It may be empty.

    Returns:
        The answer.

    ```python
    send("hello")
    ```

    Example usage:
        send("hello")

    The channel stays open.
    """

SPHINX = """Bind a name.

    :param name: the name.
        It is kept.
    :return: nothing.

    Names are case sensitive.

    +---+---+
    | a | b |
    +---+---+
    """


def test_numpydoc_keeps_prose_alone():
    assert describe(NUMPYDOC).split("\n\n") == [
        "Fit the model to the data.",
        "The model is fitted by least squares. See Ridge and the guide, or for more. "
        "The loss is FORMULA; it is convex, so x**2 and f(*args) stay.",
        "Scale the features first.",
        "Items are kept,",
        "each by itself.",
        "The cost grows with the number of rows.",
    ]


def test_google_and_sphinx_keep_prose_alone():
    assert describe(GOOGLE) == "Send a message.\n\nWaits for an answer.\n\nThe channel stays open."
    assert describe(SPHINX) == "Bind a name.\n\nNames are case sensitive."


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("One. Two? Three!", 3), ("Uses e.g. NumPy, i.e. Arrays. Done.", 2), ("Version 1.2 of x.py is out.", 1),
     ("A title\n\nAnd a sentence.", 1), ('He said "Stop." Then he left.', 2)],
)  # fmt: skip
def test_sentences_are_counted_with_caution(text, count):
    assert count_sentences(text) == count


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("NumPy's np.array and numpy_array", "PACKAGE's PACKAGE.array and PACKAGE_array"),
        ("scikit-learn, sklearn, Scikit Learn", "PACKAGE, PACKAGE, PACKAGE"),
        ("MlflowClient, plt.plot, pd, nx_graph", "PACKAGEClient, PACKAGE.plot, PACKAGE, PACKAGE_graph"),
        ("an input, a spot, updates and knapsack", "an input, a spot, updates and knapsack"),
    ],
)
def test_names_and_aliases_are_masked(text, masked):
    assert MASKED.sub("PACKAGE", text) == masked


def test_near_duplicates_are_those_that_share_half_of_their_runs_of_words():
    seen = NearDuplicates()
    words = [f"word{number}" for number in range(40)]
    assert seen.add(" ".join(words))
    assert not seen.add(" ".join(words).upper() + "."), "the same but for case and punctuation"
    assert not seen.add(" ".join([*words[:38], "x", "y"]))
    assert seen.add(" ".join([*words[:20], *(f"other{number}" for number in range(20))]))
    assert seen.add("short text") and not seen.add("Short text!")


class Packages:
    """Small packages, installed in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("alpha", "beta"):
            self.write(name, "1.0+cpu", {f"{name}/part.py": f"def f():\n    '''{PROSE[0]}'''\n"})

    def write(self, name: str, version: str, files: dict[str, str]) -> None:
        about = self.folder / f"{name}.dist-info"
        shutil.rmtree(about, ignore_errors=True)
        about.mkdir()
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text, encoding="utf-8")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (about / "RECORD").write_text("".join(f"{path},,\n" for path in files))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(docstrings, "PACKAGES", {"alpha": "alpha", "beta": "beta"})
    return Packages(folder)


def test_only_the_packages_own_files_are_read(packages):
    text = "A module of three sentences. This is the second. Here is the third of them."
    own = (
        f"'''{text}'''\nraise RuntimeError('imported')\n"
        f"class A:\n    '''{PROSE[0]}'''\n    def f(self):\n        '''{PROSE[1]}'''\n"
    )
    left_out = f"'''{PROSE[3]}'''\n"
    packages.write(
        "alpha",
        "1.0",
        {
            "alpha/own.py": own,
            "alpha/short.py": "'''Two sentences. No more.'''\n",
            "alpha/broken.py": "def (:\n",
            "alpha/newer.py": f"def f[T](x: T):\n    '''{PROSE[2]}'''\n",
            **{
                f"alpha/{name}.py": left_out
                for name in ("tests/a", "_vendor/b", "x/externals/c", "version", "conftest")
            },
            "other/d.py": left_out,
        },
    )
    texts = {document.id: document.text for document in docstrings.rows().documents if document.labels == (0,)}
    assert texts == {
        "alpha/own.py:": text,
        "alpha/own.py:A": PROSE[0],
        "alpha/own.py:A.f": PROSE[1],
    }


def test_a_package_that_is_not_installed_is_named(packages, monkeypatch):
    monkeypatch.setattr(docstrings, "PACKAGES", {"alpha": "alpha", "no-such-package": "no"})
    with pytest.raises(InputError, match="'no-such-package', which is missing: install requirements.lock"):
        docstrings.rows()
    packages.write("alpha", "1.0", {"alpha/data.txt": ""})
    with pytest.raises(InputError, match="'alpha' has no source files in alpha/: install"):
        docstrings.rows()


def test_the_version_has_no_build_in_it(packages):
    assert docstrings.installed_versions() == {"alpha": "1.0", "beta": "1.0"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The corpus of the pinned packages, made anew from their sources, and its entry in the committed manifest."""
    from reread.preprocessing.ingest import ingest

    data = tmp_path_factory.mktemp("corpus")
    manifest = data / "data.manifest.json"
    shutil.copy(ROOT / "data.manifest.json", manifest)
    # With the committed manifest beside it, ingest refuses bytes other than those it names.
    entry = ingest("docstrings", data, manifest)
    lines = (data / "docstrings" / "documents.jsonl").read_text(encoding="utf-8").split("\n")
    return entry, [json.loads(line) for line in lines if line]


def test_the_corpus_is_the_one_of_the_manifest(corpus):
    entry, documents = corpus
    assert entry == Manifest.load(ROOT / "data.manifest.json").entry("docstrings")
    assert len(documents) == entry.rows
    assert all(count == 0 for counts in entry.leaks.values() for count in counts.values())


def test_the_corpus_has_three_sentences_a_document_in_balanced_classes(corpus):
    entry, documents = corpus
    sentences = [len(blingfire.text_to_sentences(row["text"]).split("\n")) for row in documents]
    assert sum(count >= 3 for count in sentences) >= 3000
    assert sum(count < 3 for count in sentences) < 0.01 * len(documents)
    counts = Counter(row["labels"][0] for row in documents)
    assert 6 <= len(entry.classes) == len(counts) <= 10
    assert max(counts.values()) < 1.1 * min(counts.values())
    for label in counts:
        splits = Counter(row["split"] for row in documents if row["labels"] == [label])
        assert 0.13 < splits["test"] / counts[label] < 0.16 and 0.13 < splits["validation"] / counts[label] < 0.16


def test_the_label_is_not_in_the_text(corpus):
    entry, documents = corpus
    text = "\n".join(row["text"] for row in documents).lower()
    for name in (
        *entry.classes,
        "sklearn",
        "numpy",
        "pyplot",
        " np.",
        " pd.",
        " plt.",
        " nx.",
        ">>>",
        "https://",
    ):
        assert name not in text, name


def test_files_and_near_duplicates_stay_in_one_split(corpus):
    _, documents = corpus
    splits = defaultdict(set)
    for row in documents:
        splits[row["id"].partition(":")[0]].add(row["split"])
    assert all(len(own) == 1 for own in splits.values())
    assert len({normalised_text(row["text"]) for row in documents}) == len(documents)
    seen = NearDuplicates()
    assert all(seen.add(row["text"]) for row in documents)
