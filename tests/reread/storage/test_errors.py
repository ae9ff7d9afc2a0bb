"""A command's exit code and message where something goes wrong in it."""

import errno

import pytest

from reread.storage.errors import InputError, TransientError, WorkFailed, command, is_needed, nearest
from reread.storage.files import write_text


class OfAnotherPackage(ValueError):
    exit_code = 2


def failing(error: BaseException):
    def main() -> None:
        raise error

    return command(main)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("no such thing: choose another"), 2, "error: no such thing: choose another"),
        (OfAnotherPackage("no kernel"), 2, "error: no kernel"),
        # Of a name or a document: it moves no cursor and makes no second line.
        (InputError("no 'a\nb\x1b[2J\u202e'"), 2, r"error: no 'a\nb\x1b[2J\u202e'"),
        (
            SyntaxError("invalid syntax", ("models/mine.py", 7, 1, "def", 7, 4)),
            2,
            "error: models/mine.py, line 7: invalid syntax",
        ),
        (WorkFailed("training failed"), 1, "error: training failed"),
        (TransientError("no answer"), 1, "no answer"),
        (
            PermissionError(errno.EACCES, "Permission denied", "data"),
            2,
            "error: data cannot be used (Permission denied)",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long", "data/xxx"), 2, "error: data/xxx cannot be used"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the disk has no room"),
        (OSError("5801 requested and 4080 written"), 2, "the disk has no room"),  # of numpy.save
        (
            KeyboardInterrupt(),
            130,
            "interrupted: ",
        ),
    ],
)
def test_an_error_is_one_line_and_a_code(error, code, message, capsys):
    with pytest.raises(SystemExit) as ended:
        failing(error)()
    assert ended.value.code == code
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1 and printed.endswith("\n")


@pytest.mark.parametrize(
    ("package", "needed"),
    [("torch", True), ("sklearn", True), ("pydantic_settings", True), ("sphinx", False), ("torchvisionx", False)],
)
def test_a_package_that_reread_needs_is_known_by_the_name_that_imports_it(package, needed):
    assert is_needed(package) is needed


def test_many_names_are_counted_and_not_listed():
    assert nearest("x", [f"trial-{number}" for number in range(1000)]).endswith(" and 950 more")


def test_a_file_where_a_folder_is_meant_is_refused(tmp_path, capsys):
    (tmp_path / "runs").touch()
    with pytest.raises(SystemExit, match="2"):
        command(lambda: write_text(tmp_path / "runs" / "key" / "job.json", "{}"))()
    assert "runs" in capsys.readouterr().err


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file", "of_ours"), ValueError("a fault")])
def test_a_fault_of_ours_is_not_hidden(error):
    with pytest.raises(type(error)):
        failing(error)()
