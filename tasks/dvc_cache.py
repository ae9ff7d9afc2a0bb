"""DVC's cache of data/: objects that are not what their name says. DVC itself never compares them again."""

import configparser
import hashlib
import json
from pathlib import Path

from planning.schema import read_yaml

DATA = Path("data.dvc")
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
    found: list[Path] = []
    if not DATA.is_file():
        return found
    listing = _object(read_yaml(DATA)["outs"][0]["md5"])
    if not listing.is_file():
        return found
    for one in json.loads(listing.read_text(encoding="utf-8")):
        path = _object(one["md5"])
        if one["relpath"].startswith(f"{data}/") and path.is_file():
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != one["md5"]:
                    found.append(path)
    return found


def remotes() -> dict[str, bool]:
    """Return whether DVC verifies what it fetches from each remote."""
    settings = _settings()
    named = {name.split('"')[1]: settings[name] for name in settings.sections() if "remote " in name}
    return {name: remote.get("verify", "false").lower() == "true" for name, remote in named.items()}


def _object(md5: str) -> Path:
    cache = _settings().get("cache", "dir", fallback="cache")
    # Relative to the folder of the configuration.
    return Path(".dvc") / cache / "files" / "md5" / md5[:2] / md5[2:]


def _settings() -> configparser.ConfigParser:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(CONFIGURATION)
    return settings
