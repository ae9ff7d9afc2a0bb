"""Vega for pages that are read without a network: one script with vega, vega-lite and vega-embed.

python -m evaluation.vega .cache/vega.js      for the page of `dvc plots`, which .dvc/plots.html makes of it
"""

import sys
from pathlib import Path

import vl_convert

from storage.errors import InputError, command
from storage.files import write_text


def script() -> str:
    """Return the JavaScript that defines ``vegaEmbed`` for a page."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@command
def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the file to write: python -m evaluation.vega .cache/vega.js")
    write_text(Path(sys.argv[1]), script())


if __name__ == "__main__":
    main()
