"""DVC's cache of data/: objects that are not what their name says. DVC itself never compares them again.

python -m tasks.dvc_cache   fetch the list of the files of data/ from the DVC remote, and check it

DVC writes to every path and object that this list names, also outside of data/ and of the cache. ``verify`` does not
cover the list. ``make data`` lets DVC fetch and check out files only after this check.
"""

import configparser
import hashlib
import json
import re
from pathlib import Path

from reread.planning.schema import read_yaml
from reread.preprocessing.manifest import DATA_DIRECTORY
from reread.storage.errors import InputError, WorkFailed, command
from reread.storage.files import below, write_text

DATA = Path("data.dvc")
MD5 = re.compile(r"[0-9a-f]{32}")
CONFIGURATION = (".dvc/config", ".dvc/config.local")


def how_to_mend(data: str) -> str:
    """Return what to remove beside data/NAME so that DVC does not bring damaged files back; empty where nothing."""
    damaged = damaged_objects(data)
    if not damaged:
        return ""
    unverified = [name for name, verified in remotes().items() if not verified]
    verify = f", and `dvc remote modify {unverified[0]} verify true`" if unverified else ""
    return f". DVC's copies of it are damaged too: `rm -f {' '.join(map(str, damaged))}`{verify} before that"


def damaged_objects(data: str) -> list[Path]:
    """Return the objects in DVC's cache, of the files of data/NAME, whose md5 is not the one that they are named by."""
    damaged: list[Path] = []
    if not DATA.is_file():
        return damaged
    listing = _object(_listing())
    if not listing.is_file():
        return damaged
    for entry in json.loads(listing.read_text(encoding="utf-8")):
        path = _object(entry["md5"])
        if entry["relpath"].startswith(f"{data}/") and path.is_file():
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != entry["md5"]:
                    damaged.append(path)
    return damaged


def remotes() -> dict[str, bool]:
    """Return whether DVC verifies what it fetches from each remote."""
    settings = _settings()
    named = {name.split('"')[1]: settings[name] for name in settings.sections() if "remote " in name}
    return {name: remote.get("verify", "false").lower() == "true" for name, remote in named.items()}


def fetch_listing() -> None:
    """Put the list of the files of data/ into DVC's cache, of the default remote where it is not there yet.

    InputError where it is not the one that data.dvc names, or names a file outside of data/; WorkFailed where there is
    no such list.
    """
    from dvc.repo import Repo

    md5 = _listing()
    with Repo() as repo:
        cached = Path(repo.cache.local.oid_to_path(md5))
        if cached.is_file():
            refuse_foreign_listing(cached.read_bytes(), md5, f"{cached}: remove it")
            return
        try:
            remote = repo.cloud.get_remote_odb(None, "fetch").get(md5)
            with remote.fs.open(remote.path, "rb") as file:
                content = file.read()
        except Exception as error:  # of any kind of remote: an address, a network, a password, a missing file
            raise WorkFailed(f"the DVC remote has no list of the files of {DATA_DIRECTORY}/ ({error})") from None
        refuse_foreign_listing(content, md5, f"{remote.path} in the DVC remote: ask who may write there")
        write_text(cached, content.decode())


def refuse_foreign_listing(content: bytes, md5: str, where: str) -> None:
    """Raise InputError for a list that is not the one that is named by ``md5``, or that leads outside of data/.

    where: which file it is, and what to do with it.
    """
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if f"{digest}.dir" != md5:
        raise InputError(f"{DATA} names the list of files {md5}, and the md5 of this one is {digest}: {where}")
    for entry in json.loads(content):
        name = Path(entry["relpath"])
        below(DATA_DIRECTORY, name, where, links=True)
        # The file itself may be a link to DVC's cache.
        below(DATA_DIRECTORY, name.parent, where)
        if not MD5.fullmatch(entry["md5"]):
            raise InputError(f"'{entry['md5']}' of '{name}' is no md5: {where}")


def _listing() -> str:
    return str(read_yaml(DATA)["outs"][0]["md5"])


def _object(md5: str) -> Path:
    cache = _settings().get("cache", "dir", fallback="cache")
    # Relative to the folder of the configuration.
    return Path(".dvc") / cache / "files" / "md5" / md5[:2] / md5[2:]


def _settings() -> configparser.ConfigParser:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(CONFIGURATION)
    return settings


@command
def main() -> None:
    fetch_listing()


if __name__ == "__main__":
    main()
