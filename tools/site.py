"""Read a built site as a browser would: what it loads from outside, and which links are dead."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a page loads by itself; a plain link (<a href>) loads nothing until somebody clicks.
_LOADS = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "image": ("href", "xlink:href"),
}
_LINK_TYPES_THAT_LOAD = {"stylesheet", "icon", "shortcut", "preload", "modulepreload", "prefetch"}


class Page(HTMLParser):
    """The loads, links and anchors of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and not _LINK_TYPES_THAT_LOAD & set(given.get("rel", "").split()):
            return
        self.loads.extend(given[name] for name in _LOADS.get(tag, ()) if name in given)


@cache
def _parse(path: Path) -> Page:
    return Page(path)


def pages(site: Path) -> list[Path]:
    """All HTML pages of a site, but for the building blocks that a theme keeps in _static."""
    return [p for p in sorted(site.rglob("*.html")) if "_static" not in p.relative_to(site).parts]


def outside_loads(site: Path) -> list[str]:
    """Each thing that a page would fetch from another machine."""
    found = []
    for path in pages(site):
        for url in _parse(path).loads:
            if urlsplit(url).netloc:
                found.append(f"{path.relative_to(site)} loads {url}")
    return found


def dead_links(site: Path) -> list[str]:
    """Each link, picture, script or anchor inside the site that leads nowhere."""
    found = []
    for path in pages(site):
        page = _parse(path)
        for url in [*page.links, *page.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                found.append(f"{path.relative_to(site)} leads to {url}, which does not exist")
            elif parts.fragment and target.suffix == ".html":
                anchors = _parse(target).anchors | {"", "top"}
                if unquote(parts.fragment) not in anchors and parts.fragment not in anchors:
                    found.append(f"{path.relative_to(site)} leads to {url}: no such anchor")
    return found
