"""A store that speaks as much of S3 as MLflow uses: objects are put, read, listed and removed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def objects(self) -> dict[str, bytes]:
        return self.server.objects

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        self.objects[unquote(self.path)] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        content = self.objects.get(unquote(url.path))
        if content is not None:
            self.answer(200, content)
        elif "list-type=2" in url.query:
            bucket = f"{unquote(url.path).rstrip('/')}/"
            prefix = bucket + parse_qs(url.query).get("prefix", [""])[0]
            keys = [name.removeprefix(bucket) for name in self.objects if name.startswith(prefix)]
            listed = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
            self.answer(200, body.encode())
        else:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.objects.pop(unquote(self.path), None)
        self.answer(204)

    def do_POST(self) -> None:  # several objects at once
        keys = self.rfile.read(int(self.headers["Content-Length"])).decode().split("<Key>")[1:]
        for key in keys:
            self.objects.pop(f"{unquote(urlsplit(self.path).path).rstrip('/')}/{key.split('</Key>')[0]}", None)
        self.answer(200, b"<DeleteResult></DeleteResult>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def object_store() -> Iterator[tuple[dict[str, bytes], dict[str, str]]]:
    """Run the store; yield its objects by /BUCKET/KEY, and the variables that send boto3 there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.objects = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        # Otherwise the content comes in chunks with checksums between them.
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    }
    try:
        yield server.objects, variables
    finally:
        server.shutdown()
        server.server_close()
