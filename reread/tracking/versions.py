"""The versions of a registered model as plain values.

The project's own database is read without MLflow, whose import takes two seconds. A server, or a database that cannot
be read so, is asked by MLflow's client.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pydantic.dataclasses

from reread.planning.experiment import refuse_elsewhere
from reread.preprocessing.manifest import MANIFEST_PATH, Manifest
from reread.preprocessing.sources import SOURCES
from reread.storage.errors import InputError, nearest
from reread.tracking.addresses import place_now
from reread.tracking.connection import DATABASE, Unavailable, tracking_uri
from reread.tracking.descriptions import registered_name
from reread.tracking.runs import open_tracking

# What MLflow's database calls a version that was deleted.
DELETED = "Deleted_Internal"
# The scheme of the address of a model in a run, in place of a folder's.
LOGGED = "models"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(strict=True))
class Version:
    """One version: its number, tags and description (the model card), and the address of its files.

    ValueError for a value that is no text.
    """

    name: str
    version: str
    tags: Mapping[str, str]
    description: str
    address: str


@dataclass(frozen=True)
class Registered:
    """The versions of one registered model by number, and the number of each alias."""

    name: str
    versions: Mapping[str, Version]
    aliases: Mapping[str, str]

    def listed(self) -> str:
        """Return the versions with their variants, for a message."""
        numbers = sorted(self.versions, key=int)
        return ", ".join(f"{number} ({self.versions[number].tags.get('variant', 'unknown')})" for number in numbers)


def registered_model(data: str, root: Path = Path()) -> Registered:
    """Return the registered model of a data set; InputError names those that there are.

    Unavailable where MLflow does not answer or its database is damaged.
    """
    own = root / DATABASE
    if tracking_uri(root) == f"sqlite:///{own.resolve()}":
        if not own.exists():
            refuse_elsewhere(root)
            raise InputError(
                f"no model is registered yet ({own.resolve()} does not exist): {_instead_of(data, [], root)}"
            )
        try:
            return _in_database(own, data)
        except InputError:
            raise
        except (sqlite3.Error, ValueError, TypeError, AttributeError):
            pass  # damaged, or of another version of MLflow, whose client says what is wrong
    try:
        return _at_client(data, root)
    except InputError:
        raise
    except Exception as error:  # whatever MLflow, its database or its server raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unavailable(
            f"MLflow cannot read the models in {tracking_uri(root)} ({reason}): restore that database, or move it away "
            "and run the experiments again, which registers their models"
        ) from None


def _in_database(path: Path, data: str) -> Registered:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)) as database:
        names = (registered for (registered,) in database.execute("SELECT name FROM registered_models"))
        name = _known(data, names, path.parent)
        tags: dict[int, dict[str, str]] = {}
        for number, key, value in database.execute(
            "SELECT version, key, value FROM model_version_tags WHERE name = ?", [name]
        ):
            tags.setdefault(number, {})[key] = value
        rows = database.execute(
            "SELECT version, description, COALESCE(artifact_location, storage_location, source) FROM model_versions "
            "LEFT JOIN logged_models ON source = ? || model_id WHERE model_versions.name = ? "
            "AND COALESCE(current_stage, '') != ?",
            [f"{LOGGED}:/", name, DELETED],
        )
        versions = {
            str(number): Version(name, str(number), tags.get(number, {}), description or "", address)
            for number, description, address in rows
        }
        aliases = database.execute("SELECT alias, version FROM registered_model_aliases WHERE name = ?", [name])
        return Registered(name, versions, {alias: str(number) for alias, number in aliases})


def _at_client(data: str, root: Path) -> Registered:
    client = open_tracking(root).client
    models = {model.name: model for model in client.search_registered_models()}
    name = _known(data, iter(models), root)
    versions = {
        str(version.version): Version(
            name, str(version.version), version.tags, version.description or "", str(version.source)
        )
        for version in client.search_model_versions(f"name = '{name}'")
    }
    return Registered(name, versions, {alias: str(number) for alias, number in models[name].aliases.items()})


def files(version: Version, root: Path = Path()) -> Path:
    """Return the folder of a version's files, or of a copy where a server keeps them; InputError where it fails."""
    address = urlsplit(version.address)
    if address.scheme == "file":
        return place_now(version.address, root)
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    tracking, source = open_tracking(root), version.address
    try:
        if address.scheme == LOGGED:
            source = tracking.client.get_logged_model(address.path.removeprefix("/")).artifact_location
        return Path(download_artifacts(artifact_uri=source, tracking_uri=tracking.uri))
    except MlflowException as error:
        raise InputError(error.message.splitlines()[0]) from None


def _known(data: str, names: Iterator[str], root: Path) -> str:
    """Return the registered name of a data set; InputError where ``names`` does not have it."""
    name, there = registered_name(data), set(names)
    if name in there:
        return name
    known = [other.removeprefix(registered_name("")) for other in there if other.startswith(registered_name(""))]
    raise InputError(f"no model of '{data}' is registered: {_instead_of(data, known, root)}")


def _instead_of(data: str, known: Sequence[str], root: Path) -> str:
    """Return what to do where a data set has no model: train some, or name one of ``known``, which have."""
    if data in Manifest.load(root / MANIFEST_PATH).datasets and data not in SOURCES:
        return f"`reread try {data}` trains some and registers the best"
    if known:
        return nearest(data, known)
    return (
        "an experiment on that data with `evaluate_on: test` (`make run` or `make run EXPERIMENT=NAME`) trains some "
        "and registers the best"
    )
