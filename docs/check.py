"""Check the built site: links and anchors, external URLs, resources loaded from other hosts, and the API's content.

    python docs/check.py SITE

External URLs are checked for their form only; nothing is requested. Exit with code 1 where something is wrong.
"""

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
# Elements whose URL a browser fetches by itself.
LOADED = {"link": "href", **dict.fromkeys(("audio", "iframe", "img", "script", "source", "video"), "src")}
REMOTE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


@dataclass
class Page:
    """A page's anchors, links, loaded URLs, and the documented names of its API."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    documented: set[str] = field(default_factory=set)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if "id" in values:
            self.page.anchors.add(values["id"])
        if tag == "dt" and "sig" in values.get("class", "").split():
            self.page.documented.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        address = values.get(LOADED.get(tag, ""))
        if address and values.get("rel") not in ("canonical", "next", "prev", "author"):
            self.page.loaded.append(address)


def read_page(path: Path) -> Page:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def broken_links(site: Path, pages: dict[Path, Page]) -> list[str]:
    wrong = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.links:
            url = urlsplit(link)
            if url.scheme in ("http", "https"):
                if not re.fullmatch(r"[\w.-]+\.[a-z]{2,}(:\d+)?", url.netloc):
                    wrong.append(f"{where}: {link} is not a valid address")
            elif url.scheme not in ("", "mailto"):
                wrong.append(f"{where}: {link} has an unknown scheme")
            elif not url.scheme:
                target = (path.parent / unquote(url.path)).resolve() if url.path else path
                if not target.is_file():
                    wrong.append(f"{where}: {link} does not exist")
                elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                    wrong.append(f"{where}: {link} has no such anchor")
    return wrong


def remote_resources(site: Path, pages: dict[Path, Page]) -> list[str]:
    wrong = [
        f"{path.relative_to(site)}: loads {address} from another host"
        for path, page in pages.items()
        for address in page.loaded
        if urlsplit(address).netloc
    ]
    for path in site.rglob("*.css"):
        for address in REMOTE.findall(path.read_text(encoding="utf-8")):
            wrong.append(f"{path.relative_to(site)}: loads {address} from another host")
    return wrong


def empty_api_pages(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Return the public functions and classes with a docstring that the API pages lack, and rooms without a page."""
    sys.path.insert(0, str(ROOT / "docs"))
    from conf import ROOMS, documented_names

    wrong = []
    for room in ROOMS:
        page = pages.get(site / "api" / f"{room}.html")
        missing = sorted(documented_names(room) - (page.documented if page else set()))
        if page is None:
            wrong.append(f"api/{room}.html does not exist")
        elif missing:
            wrong.append(f"api/{room}.html lacks {', '.join(missing[:5])} ({len(missing)} names)")
    return wrong


def broken_readme_links() -> list[str]:
    wrong = []
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if not urlsplit(link).scheme and not (ROOT / link.partition("#")[0]).exists():
                wrong.append(f"{name}: {link} does not exist")
    return wrong


def main(site: Path) -> int:
    site = site.resolve()
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        print(f"error: {site} has no pages; run: make docs", file=sys.stderr)
        return 1
    wrong = [
        *broken_links(site, pages),
        *remote_resources(site, pages),
        *empty_api_pages(site, pages),
        *broken_readme_links(),
    ]
    print("\n".join(wrong) or f"{len(pages)} pages: links, anchors, resources and API names are in order")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")))
