"""Fixtures for tests of the built book: `book`, `book_url`, `browser`, `page`, `book_copy`."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tools.build import build
from tools.notebooks import ROOT

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# The theme declares one variable twice; it harms nobody.
HARMLESS = ("THEBE_JS_URL",)


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the book's HTML, built afresh from the work tree."""
    output = tmp_path_factory.mktemp("book")
    result = build(ROOT, output)
    assert result.returncode == 0, result.stdout
    return output / "_build" / "html"


@pytest.fixture
def book_copy(tmp_path: Path) -> Path:
    """A small copy of the book's sources, to break: its settings, intro and reference pages."""
    for name in ("_config.yml", "references.bib"):
        shutil.copy2(ROOT / name, tmp_path)
    for name in ("_static", "reference", "benchmarks/results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "tools").mkdir()
    for name in ("alt_text.py", "tagged_math.py"):
        shutil.copy2(ROOT / "tools" / name, tmp_path / "tools")
    # The real one leads to chapters, which stay behind.
    (tmp_path / "reference" / "equations.md").write_text("# Equations\n", encoding="utf-8")
    (tmp_path / "intro.md").write_text("# A page\n\nIts text.\n", encoding="utf-8")
    names = sorted(path.stem for path in (tmp_path / "reference").glob("*.md"))
    listed = "\n".join(f"- file: reference/{name}" for name in names)
    toc = f"format: jb-book\nroot: intro\nchapters:\n{listed}\n"
    (tmp_path / "_toc.yml").write_text(toc, encoding="utf-8")
    return tmp_path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a folder on 127.0.0.1 until the tests end; gives the address."""
    servers = []

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def book_url(book: Path, serve: Callable[[Path], str]) -> str:
    """The address of the served book, without a slash at the end."""
    return serve(book)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser, Debian's chromium, closed after the module."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium here; on Debian: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Noise:
    """What a page asked of other machines, and what it complained about."""

    def __init__(self, page: Any) -> None:
        self.outside: list[str] = []
        self.errors: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("response", self._response)
        page.route(lambda url: not _is_local(url), self._refuse)

    def _refuse(self, route: Any) -> None:
        self.outside.append(route.request.url)
        route.abort()

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self._complain(message.text)

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.errors.append(f"{response.status} {response.url}")

    def _complain(self, text: str) -> None:
        if not any(word in text for word in HARMLESS):
            self.errors.append(text)


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:", "about:"))


@pytest.fixture
def noisy_page(browser: Any) -> Iterator[tuple[Any, Noise]]:
    """A browser page and what it says and fetches; nothing is asserted."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    yield page, Noise(page)
    context.close()


@pytest.fixture
def page(noisy_page: tuple[Any, Noise]) -> Iterator[Any]:
    """A browser page that must make no outside request and write no error to its console."""
    tab, noise = noisy_page
    yield tab
    assert noise.outside == []
    assert noise.errors == []
