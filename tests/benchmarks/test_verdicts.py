"""The simulation of the rule, by its command, with few draws."""

import pytest

from benchmarks import verdicts
from storage.errors import InputError


def test_the_tables_are_written_between_the_marks(tmp_path, monkeypatch):
    page = tmp_path / "verdicts.md"
    page.write_text(f"Before.\n\n{verdicts.BEGIN}\nold\n{verdicts.END}\n\nAfter.\n")
    monkeypatch.setattr(verdicts, "SEEDS", (6,))
    monkeypatch.setattr(verdicts, "COMPARISONS", (1, 3))
    monkeypatch.setattr("sys.argv", ["verdicts", "--draws", "2", "--page", str(page)])
    with pytest.raises(SystemExit) as ended:
        verdicts.main()
    assert not ended.value.code
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "\nold\n" not in text
    assert "--draws 2`" in text
    # Four tables of the shapes, the designs, and the ways to look again; each has a head of two lines.
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 4 * (2 + len(verdicts.SHAPES)) + (2 + len(verdicts.DESIGNS)) + (2 + 4)
    shapes = [line for line in rows if line.startswith("| spreads 3:1 |")]
    assert [line.count("%") for line in shapes] == [2, 2, 2, 1]


def test_a_page_without_the_marks_is_refused(tmp_path):
    with pytest.raises(InputError, match="tables of benchmarks.verdicts"):
        verdicts.with_tables("A page.", "")
