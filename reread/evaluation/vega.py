"""Vega for pages that are read without a network: one script with vega, vega-lite and vega-embed.

python -m reread.evaluation.vega      writes it, for the page of `dvc plots`, which .dvc/plots.html makes of it
"""

import contextlib
import functools
import importlib.metadata

from reread.storage.errors import InputError, command
from reread.storage.files import write_text
from reread.storage.source import ROOT

BUNDLE = ROOT / ".cache" / "vega.js"


@functools.cache
def script() -> str:
    """Return the JavaScript that defines ``vegaEmbed`` for a page.

    Bundling takes a second, so the result is cached on disk, if the folder can be written. Its first line names the
    version of vl-convert that has bundled it.
    """
    head = f"// Vega of vl-convert {importlib.metadata.version('vl-convert-python')}\n"
    if BUNDLE.is_file() and (cached := BUNDLE.read_bytes().decode()).startswith(head):
        return cached
    import vl_convert

    text = head + vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):
        BUNDLE.parent.mkdir(exist_ok=True)
        write_text(BUNDLE, text)
    return text


@command
def main() -> None:
    script()
    if not BUNDLE.is_file():
        raise InputError(f"{BUNDLE} cannot be written: `dvc plots` shows a page without charts")


if __name__ == "__main__":
    main()
