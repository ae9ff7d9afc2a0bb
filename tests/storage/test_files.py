"""Files that are not what they should be are told in one line."""

import pytest

from storage.errors import InputError
from storage.files import read_json, read_object, write_json
from storage.prepared import DESCRIPTION, open_prepared


def test_what_is_no_file_to_be_read_is_told(tmp_path):
    (tmp_path / "file").write_text("{}")
    with pytest.raises(InputError, match="missing.json is missing"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_json(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read \(Not a directory\)"):
        read_json(tmp_path / "file" / "job.json")
    for broken in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "file").write_bytes(broken)
        with pytest.raises(InputError, match="file is not valid JSON .* restore it"):
            read_json(tmp_path / "file")


@pytest.mark.parametrize("value", [{}, [], None, {"name": "small", "kind": "text"}])
def test_an_object_without_what_is_asked_of_it_is_told(tmp_path, value):
    write_json(tmp_path / DESCRIPTION, value)
    with pytest.raises(InputError, match="prepared.json has no 'task'|prepared.json has no 'name'"):
        open_prepared(tmp_path)
    with pytest.raises(InputError, match="prepared.json has no 'arrays': restore it"):
        read_object(tmp_path / DESCRIPTION, "arrays")
