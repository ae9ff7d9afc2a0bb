"""A run folder: what its files hold, and what is said where one is missing or broken."""

import pytest

from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.run_folder import RunFolder
from tests.digests import write_digests


def test_a_run_is_finished_when_it_has_a_result(tmp_path):
    run = RunFolder(tmp_path / "0123abcd")
    assert run.key == "0123abcd" and not run.finished
    with pytest.raises(InputError, match=r"0123abcd has no result\.json"):
        run.require_result()
    # The digests are written first: a kill may leave them alone.
    write_json(run.directory / "digests.json", {"files": {"result.json": "0" * 64}})
    run.refuse_damage()
    assert RunFolder(run.directory).result == {}
    (run.directory / "digests.json").unlink()
    write_json(run.directory / "result.json", {"epochs": 3})
    assert run.finished and run.require_result() == {"epochs": 3}
    # What is optional is empty, what is not is named.
    assert run.environment == run.timing == {}
    with pytest.raises(InputError, match=r"job\.json is missing"):
        _ = run.job


def test_a_job_of_another_machine_brings_its_commit(tmp_path):
    write_json(tmp_path / "environment.json", {"gpu": "H200", "git_commit": "there", "git_dirty": True})
    write_json(tmp_path / "job.json", {"model": "han", "network": {}})
    assert RunFolder(tmp_path).environment["git_commit"] == "there"
    write_json(tmp_path / "job.json", {"model": "han", "network": {}, "checkout": ["here", False]})
    assert RunFolder(tmp_path).environment == {"gpu": "H200", "git_commit": "here", "git_dirty": False}


@pytest.mark.parametrize(
    ("name", "value", "said"), [("run_key", None, "None"), ("seed", "1", "'1'"), ("network", [], r"\[\]")]
)
def test_a_job_of_other_content_is_named(tmp_path, name, value, said):
    write_json(tmp_path / "job.json", {"model": "han", "network": {}, name: value})
    with pytest.raises(InputError, match=rf"{tmp_path}/job\.json: '{name}' is {said}: remove {tmp_path} and run again"):
        _ = RunFolder(tmp_path).job
    write_json(tmp_path / "job.json", {"model": "han"})
    with pytest.raises(InputError, match=rf"{tmp_path}/job\.json has no 'network': remove {tmp_path} and run again"):
        _ = RunFolder(tmp_path).job


def test_the_history_is_a_list_of_epochs(tmp_path):
    run, file = RunFolder(tmp_path), tmp_path / "history.csv"
    with pytest.raises(InputError, match=r"history\.csv is missing"):
        run.history()
    file.write_text("epoch,training_loss\n1,0.5\n2,nan\n")
    first, second = run.history()
    assert first == {"epoch": 1, "training_loss": 0.5} and second["training_loss"] != second["training_loss"]
    for broken in (b"epoch,training_loss\n1\n", b"epoch,training_loss\n1,x\n", b"epoch\n\xff\n"):
        file.write_bytes(broken)
        with pytest.raises(InputError, match=r"history\.csv cannot be read"):
            run.history()


def test_evaluations_are_listed_newest_last(tmp_path):
    run = RunFolder(tmp_path)
    for key in ("b", "a"):
        write_json(run.evaluation(key) / "metrics.json", {"key": key})
        write_digests(run.evaluation(key))
    assert run.evaluations() == {"b": {"key": "b"}, "a": {"key": "a"}} and list(run.evaluations()) == ["b", "a"]
