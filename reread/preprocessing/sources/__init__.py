"""The data sets that can be ingested: reread/preprocessing/sources/NAME.py makes the rows of data set NAME.

A source defines

    rows      rows(progress) -> TextRows, ImageRows or the rows of another kind: an embedded data set; or
              rows(archives, progress) -> the same: a published one, made of the files of
    ARCHIVES  optional: reread.preprocessing.download.Archive objects
    find      optional, in place of ARCHIVES where a source has several forms: find(FOLDER/NAME of the mirror, or None)
              -> the paths that ``rows`` reads

and, all optional,

    VERSION             of a published data set: the version that its rows must have
    installed_versions  of a data set made of installed packages: installed_versions() -> {package: version}
    group_of            group_of(document) -> the group of a document, where About.groups names this source
"""

from reread.storage.registry import Registry
from reread.storage.source import defined_names

SOURCES = REGISTRY = Registry("reread.preprocessing.sources", "data set", requires=("rows",))


def how_to_make(name: str) -> str:
    """Return what makes data/NAME where it is missing: a data set of the user's own has no source."""
    if name in SOURCES:
        return "run 'make data' to make it"
    return "add it again by `reread data add`, or run 'make data' where DVC has a remote"


def embedded() -> list[str]:
    """Return the names of the data sets that need no archive. Files are parsed and not imported."""
    names = ((name, defined_names(SOURCES.folder / f"{name}.py")) for name in SOURCES.available())
    return [name for name, defined in names if not defined & {"ARCHIVES", "find"}]
