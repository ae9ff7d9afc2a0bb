"""One process, several, and Dask give the same bytes; a worker that dies is told in one line and leaves nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reread.preprocessing import blocks, documents, workers
from reread.preprocessing.prepare import prepare
from reread.storage.errors import InputError, TransientError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def corpus(corpus_of, monkeypatch):
    """A corpus of about 20 small blocks."""
    generator = random.Random(6)
    words = [*(f"w{number}" for number in range(500)), "é", "字", "U.S."]
    splits = ("train", "train", "validation", "test")
    corpus_of(
        [
            {"id": f"d{row}", "labels": [row % 3], "split": splits[row % 4], "text": text + "."}
            for row in range(400)
            for text in [". ".join(" ".join(generator.choices(words, k=9)) for _ in range(4))]
        ]
    )
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 4000)


def prepared(where: str, *how: int | str | None) -> dict[str, bytes]:
    with workers.use_workers(workers.Workers(*how)):
        folder = prepare("corpus", {}, prepared_root=Path(where))
    return {"": folder.name.encode(), **{path.name: path.read_bytes() for path in folder.iterdir()}}


def children() -> list[int]:
    """The processes that this one started and that are not gone."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in listed]


def workers_of(process: int) -> list[int]:
    """The processes that a pool of ``process`` started."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def test_one_process_two_and_dask_give_the_same_bytes(corpus, monkeypatch):
    from distributed import LocalCluster

    before = children()
    expected = prepared("one", 1)
    assert prepared("two", 2) == expected
    assert prepared("dask", "dask") == expected
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory="scratch") as cluster:
        address = cluster.scheduler_address
        assert prepared("cluster", None, address) == expected
        monkeypatch.setattr(documents, "LIBRARIES", ("blingfire",))
        with pytest.raises(InputError, match="worker tcp://.* has other libraries"):
            prepared("other", None, address)
    assert len(expected) == 13
    left = set(children()) - set(before)
    commands = [Path(f"/proc/{process}/cmdline").read_text() for process in left]
    # multiprocessing's own helper stays until this process ends.
    assert all("resource_tracker" in command for command in commands), commands


def test_a_refused_document_is_the_same_line_from_another_process(corpus, corpus_of, monkeypatch):
    rows = [json.loads(line) for line in Path("data/corpus/documents.jsonl").read_text().splitlines()]
    rows[333]["text"] = "\u200b"
    corpus_of(rows)
    lines = []
    for how in (1, 2):
        with pytest.raises(InputError) as caught:
            prepared("prepared", how)
        lines.append(str(caught.value))
    assert lines[0] == lines[1] and "'d333' has no word" in lines[0]
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


def test_a_killed_worker_is_reported_and_leaves_nothing(corpus, monkeypatch):
    added = []
    add = documents._Found.add

    def add_and_kill(gathered, block):
        if not added:
            os.kill(workers_of(os.getpid())[0], signal.SIGKILL)
        added.append(block)
        add(gathered, block)

    monkeypatch.setattr(documents._Found, "add", add_and_kill)
    with pytest.raises(TransientError, match="died.*nothing was published") as caught:
        prepared("prepared", 2)
    assert "\n" not in str(caught.value)
    assert not workers_of(os.getpid())
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


def test_workers_end_when_who_started_them_is_killed(corpus):
    code = (
        "from reread.preprocessing import blocks, documents\n"
        "from reread.preprocessing.prepare import prepare\n"
        "blocks.BLOCK_BYTES = documents.BLOCK_BYTES = 4000\n"
        "def halt(*_): print('halted', flush=True); import time; time.sleep(600)\n"
        "documents._Found.add = halt\n"
        "from reread.preprocessing.workers import Workers, use_workers\n"
        "with use_workers(Workers(2)): prepare('corpus', {})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "halted\n"
        started = workers_of(process.pid)
        assert len(started) == 2
        process.kill()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in started):
        assert time.monotonic() < end, "workers outlive who started them"
        time.sleep(0.05)
    assert not [path for path in Path("prepared").iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:9", "spam://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there_is_reported_in_one_line(corpus, monkeypatch, address):
    monkeypatch.setattr(workers, "SECONDS_TO_CONNECT", 0.5)
    with pytest.raises(InputError, match=f"the scheduler {address}: no scheduler answers") as caught:
        prepared("prepared", None, address)
    assert "\n" not in str(caught.value)
    assert [path.name for path in Path("prepared").iterdir()] == [".locks"]


def test_dask_is_imported_only_where_it_is_asked_for():
    code = (
        "import sys, reread.preprocessing.prepare\n"
        "print([name for name in ('dask', 'distributed') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


def test_a_worker_has_no_pandas_to_import():
    code = "import sys, reread.preprocessing.workers; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"
