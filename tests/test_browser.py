"""Every page works in a real browser: math, pictures, search, dark mode, phones, no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.build import build
from tools.launch import colab_link
from tools.notebooks import ROOT, chapters, repository

PHONE = {"width": 375, "height": 740}

# Math that MathJax has not turned into an mjx-container yet would show as raw TeX.
MATH = """async () => {
  if (window.MathJax) await MathJax.startup.promise;
  const places = [...document.querySelectorAll('.math')];
  return {
    raw: places.filter(place => !place.querySelector('mjx-container')).length,
    wrong: document.querySelectorAll('mjx-merror').length,
    rendered: document.querySelectorAll('mjx-container').length,
  };
}"""
BROKEN_IMAGES = """async () => {
  const images = [...document.images];
  for (const image of images) image.loading = 'eager';
  await Promise.all(images.map(image => image.decode().catch(() => null)));
  return images.filter(image => image.naturalWidth === 0).map(image => image.src);
}"""
# How far the page can be pushed sideways, and who is to blame.
SIDEWAYS = """() => {
  const root = document.scrollingElement, width = root.clientWidth;
  if (root.scrollWidth <= width) return [];
  return [...document.querySelectorAll('.bd-main *')]
    .filter(e => e.getBoundingClientRect().right > width + 1)
    .map(e => e.tagName + '.' + e.className).slice(0, 5).concat(root.scrollWidth);
}"""


def _pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [toc["root"], *listed]


@pytest.mark.parametrize("name", _pages())
def test_a_page_opens_with_its_math_and_pictures_also_on_a_phone(
    name: str, page: Any, book_url: str
) -> None:
    page.goto(f"{book_url}/{name}.html")
    math = page.evaluate(MATH)
    assert (math["raw"], math["wrong"]) == (0, 0)
    assert page.evaluate(BROKEN_IMAGES) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate(SIDEWAYS) == []


def test_math_is_rendered_on_the_notation_page(page: Any, book_url: str) -> None:
    page.goto(f"{book_url}/reference/notation.html")
    assert page.evaluate(MATH)["rendered"] > 10


def test_an_equation_of_several_lines_can_carry_a_number(
    page: Any, book_copy: Path, serve: Callable[[Path], str]
) -> None:
    lines = "$$\n\\begin{aligned} a &= b \\\\ &= c \\end{aligned} \\tag{5}\n$$\n"
    (book_copy / "intro.md").write_text(f"# A page\n\n{lines}", encoding="utf-8")
    assert build(book_copy).returncode == 0
    page.goto(serve(book_copy / "_build" / "html") + "/intro.html")
    assert page.evaluate(MATH) == {"raw": 0, "wrong": 0, "rendered": 1}


def test_the_site_works_from_disk_with_the_network_off(page: Any, book: Path) -> None:
    page.context.set_offline(True)
    page.goto((book / "reference" / "notation.html").as_uri())
    math = page.evaluate(MATH)
    assert math["raw"] == 0
    assert math["rendered"] > 10
    assert page.evaluate(BROKEN_IMAGES) == []


def test_search_finds_a_word(page: Any, book_url: str) -> None:
    page.goto(f"{book_url}/search.html?q=prototype")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() > 0


def test_dark_mode_toggles(page: Any, book_url: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(f"{book_url}/intro.html")
    seen = {}
    for _ in range(3):
        page.locator(".theme-switch-button").first.click()
        theme = page.evaluate("document.documentElement.dataset.theme")
        seen[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert set(seen) == {"light", "dark"}
    assert seen["light"] != seen["dark"]


def test_the_colab_button_points_at_the_notebook(page: Any, book_url: str) -> None:
    if not chapters():
        pytest.skip("no chapter yet, so no launch button")
    chapter = chapters()[0]
    page.goto(f"{book_url}/chapters/{chapter.stem}.html")
    links = page.locator("a[href*='colab.research.google.com']")
    targets = {links.nth(i).get_attribute("href") for i in range(links.count())}
    assert targets == {colab_link(*repository(), chapter.name)}


def _serve_page(tmp_path: Path, serve: Callable[[Path], str], body: str) -> str:
    (tmp_path / "index.html").write_text(
        f'<!doctype html><link rel="icon" href="data:,"><body>{body}</body>', encoding="utf-8"
    )
    return serve(tmp_path)


def test_a_script_from_a_cdn_is_seen_by_the_browser(
    noisy_page: tuple[Any, Any], tmp_path: Path, serve: Callable[[Path], str]
) -> None:
    tab, noise = noisy_page
    # Built by a script, so that reading the HTML alone would not find it.
    body = "<script>const s = document.createElement('script');"
    body += "s.src = 'https://' + 'cdn.example.org/library.js'; document.body.append(s);</script>"
    tab.goto(_serve_page(tmp_path, serve, body), wait_until="networkidle")
    assert noise.outside == ["https://cdn.example.org/library.js"]


def test_broken_pages_are_seen_by_the_browser(
    noisy_page: tuple[Any, Any], tmp_path: Path, serve: Callable[[Path], str]
) -> None:
    tab, noise = noisy_page
    body = '<img src="gone.png"><span class="math">x^2</span><script>no_such_name()</script>'
    body += '<main class="bd-main"><div style="width: 2000px">wide</div></main>'
    tab.set_viewport_size(PHONE)
    tab.goto(_serve_page(tmp_path, serve, body), wait_until="networkidle")
    assert tab.evaluate(MATH)["raw"] == 1
    assert len(tab.evaluate(BROKEN_IMAGES)) == 1
    assert tab.evaluate(SIDEWAYS) != []
    assert any("no_such_name" in text for text in noise.errors)
    assert any("404" in text for text in noise.errors)
