"""Vega for pages that are read without a network: one script with vega, vega-lite and vega-embed.

python -m evaluation.vega .cache/vega.js      for the page of `dvc plots`, which .dvc/plots.html makes of it
"""

import contextlib
import functools
import importlib.metadata
import sys
from pathlib import Path

from storage.errors import InputError, command
from storage.files import write_text
from storage.source import ROOT

CACHE = ROOT / ".cache"


@functools.cache
def script() -> str:
    """Return the JavaScript that defines ``vegaEmbed`` for a page.

    Bundling takes a second, so the result is cached on disk by the version of vl-convert, if the folder can be written.
    """
    cached = CACHE / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    if cached.is_file():
        return cached.read_bytes().decode()
    import vl_convert

    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):
        cached.parent.mkdir(exist_ok=True)
        write_text(cached, text)
    return text


@command
def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the file to write: python -m evaluation.vega .cache/vega.js")
    write_text(Path(sys.argv[1]), script())


if __name__ == "__main__":
    main()
