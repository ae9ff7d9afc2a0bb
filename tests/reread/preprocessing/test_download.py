"""Downloads from a real server on 127.0.0.1: resumed, checked, and put in place whole."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reread.preprocessing.download import Archive, download, find_archive
from reread.storage.errors import InputError, TransientError

CONTENT = bytes(number * number % 251 for number in range(300_000))


class Server(ThreadingHTTPServer):
    """Serves CONTENT; ``breaks_off_after`` bytes of a body it hangs up, and it may not know of ranges."""

    breaks_off_after: int | None = None
    knows_ranges = True
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.server.knows_ranges else 0
        status = self.server.status if self.server.status != 200 else 206 if start else 200
        if start >= len(CONTENT):
            status = 416
        body = CONTENT[start:] if status in (200, 206) else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks_off_after])

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def archive(server):
    url = f"http://127.0.0.1:{server.server_port}/x.tar.gz"
    return Archive("x.tar.gz", url, "sha256", hashlib.sha256(CONTENT).hexdigest())


def test_a_download_is_whole_and_done_once(tmp_path, server, archive):
    lines = []
    path = download(archive, tmp_path, lines.append)
    assert path.read_bytes() == CONTENT and len(lines) == 1
    assert download(archive, tmp_path) == path
    assert server.asked == [None] and not path.with_name("x.tar.gz.part").exists()


def test_a_broken_download_resumes_where_it_stopped(tmp_path, server, archive):
    server.breaks_off_after = 120_000
    with pytest.raises(TransientError, match="REREAD_MIRROR"):
        download(archive, tmp_path)
    part = tmp_path / "x.tar.gz.part"
    assert part.read_bytes() == CONTENT[:120_000] and not (tmp_path / "x.tar.gz").exists()
    server.breaks_off_after = None
    assert download(archive, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=120000-"] and not part.exists()


def test_a_server_without_ranges_sends_it_again_from_the_start(tmp_path, server, archive):
    (tmp_path / "x.tar.gz.part").write_bytes(CONTENT[:5000])
    server.knows_ranges = False
    assert download(archive, tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_taken(tmp_path, server, archive):
    (tmp_path / "x.tar.gz.part").write_bytes(CONTENT)
    assert download(archive, tmp_path).read_bytes() == CONTENT


def test_other_bytes_than_the_published_are_refused_and_removed(tmp_path, server, archive):
    (tmp_path / "x.tar.gz.part").write_bytes(b"x" * 5000)
    with pytest.raises(InputError, match="has sha256 .*, the published x.tar.gz has .*run again"):
        download(archive, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    (tmp_path / "x.tar.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match="remove it and run again"):
        download(archive, tmp_path)


def test_what_the_server_answers_decides_whether_to_try_again(tmp_path, server, archive):
    server.status = 404
    with pytest.raises(InputError, match="404.*yourself"):
        download(archive, tmp_path)
    server.status = 503
    with pytest.raises(TransientError, match="x.tar.gz: HTTP Error 503"):
        download(archive, tmp_path)


def test_a_server_that_is_not_there_is_a_transient_error(tmp_path, server, archive):
    server.shutdown()
    server.server_close()
    with pytest.raises(TransientError, match="cannot be fetched .*refused"):
        download(archive, tmp_path)


def test_a_mirror_comes_first(tmp_path, monkeypatch, server, archive):
    file = tmp_path / "mirror" / "some" / "x.tar.gz"
    with pytest.raises(InputError, match="the mirror has no .*x.tar.gz"):
        find_archive(archive, "some", tmp_path / "archives", tmp_path / "mirror")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"packed anew")
    assert find_archive(archive, "some", tmp_path / "archives", tmp_path / "mirror") == file
    assert server.asked == []
    assert find_archive(archive, "some", tmp_path / "archives").read_bytes() == CONTENT
