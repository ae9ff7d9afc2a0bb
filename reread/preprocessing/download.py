"""Published archives: from a mirror folder, or downloaded from their URLs with resumption.

A downloaded file is checked against the checksum that its authors or a well-known reader publish. A mirror's files may
be packed differently, so only their integrity, member names, counts and the digest of their content are checked (see
reread.preprocessing.archives and ingest).
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from reread.storage.errors import InputError, TransientError
from reread.storage.locks import file_lock

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60
BUSY = (408, 425, 429)  # the server asks for a later retry


@dataclass(frozen=True)
class Archive:
    """A published file: its name, where it is, and its checksum (hex, of the algorithm that hashlib knows by name).

    checksum: "" where none is published. data_set: whose folder of a mirror has the file; "" for that of the data set
    that is made of it.
    """

    file_name: str
    url: str
    algorithm: str
    checksum: str
    data_set: str = ""


def find_archive(
    archive: Archive,
    data_set: str,
    archives_directory: Path,
    mirror: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Return the path of the archive: mirror/DATA_SET/FILE where there is a mirror, else archives/FILE, downloaded.

    InputError when the mirror does not have the file.
    """
    if not mirror:
        return download(archive, Path(archives_directory), progress)
    path = Path(mirror) / (archive.data_set or data_set) / archive.file_name
    if not path.is_file():
        raise InputError(f"the mirror has no {path}: put the archive there, or name no mirror (REREAD_MIRROR)")
    return path


def download(archive: Archive, directory: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Download ``archive`` to ``directory`` and return its path; an existing complete file is reused.

    The part received before an interruption is kept in FILE.part and resumed. TransientError when the network or the
    server fails, InputError when the server has no such file or the checksum is not the published one.
    """
    path = directory / archive.file_name
    part = directory / f"{archive.file_name}.part"
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory / f".{archive.file_name}.lock"):
        if path.is_file():
            check(path, archive, "remove it and run again")
            return path
        progress(f"downloading {archive.url}")
        try:
            fetch(archive.url, part)
        except urllib.error.HTTPError as error:
            if error.code >= 500 or error.code in BUSY:
                raise TransientError(f"{archive.url}: {error}") from error
            raise InputError(f"{archive.url}: {error}: put the archive at {path} yourself and run again") from None
        except (http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise TransientError(
                f"{archive.url} cannot be fetched ({reason}): the received part is kept and resumed, and local "
                "archives are read from REREAD_MIRROR=FOLDER"
            ) from error
        try:
            check(part, archive, "the download was removed, run again")
        except InputError:
            part.unlink()
            raise
        os.replace(part, path)
    return path


def check(path: Path, archive: Archive, what_to_do: str) -> None:
    if not archive.checksum:
        return
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, archive.algorithm).hexdigest()
    if digest != archive.checksum:
        raise InputError(
            f"{path} has {archive.algorithm} {digest}, the published {archive.file_name} has {archive.checksum}: "
            f"{what_to_do}"
        )


def fetch(url: str, part: Path) -> None:
    """Resume the download of ``url`` to ``part`` with a progress bar; a server without Range support sends it whole."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # 416: the file is complete. The checksum decides whether it is right.
        error.close()
        if have and error.code == 416:
            return
        raise
    with response, open(part, "ab" if response.status == 206 else "wb") as file:
        length = response.headers.get("Content-Length")
        total = file.tell() + int(length) if length else None
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), transient=True) as bar:
            task = bar.add_task(part.stem, total=total, completed=file.tell())
            while chunk := response.read(CHUNK):
                file.write(chunk)
                bar.update(task, advance=len(chunk))
        if total is not None and file.tell() < total:
            raise http.client.IncompleteRead(b"", total - file.tell())
