"""The book builds without a warning, leads nowhere dead, and asks nothing of other machines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools import equations
from tools.build import build
from tools.notebooks import ROOT, chapters
from tools.site import dead_links, outside_loads


def _add(page: Path, text: str) -> None:
    page.write_text(page.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_no_page_loads_anything_from_outside(book: Path) -> None:
    assert outside_loads(book) == []


def test_no_link_inside_the_book_is_dead(book: Path) -> None:
    assert dead_links(book) == []


def test_every_picture_says_in_words_what_it_is(book: Path) -> None:
    for page in sorted((book / "chapters").glob("ch*.html")):
        said = re.findall(r'<img alt="([^"]*)"[^>]*_images', page.read_text(encoding="utf-8"))
        assert said, page.name
        assert [alt for alt in said if not alt.startswith("Figure ")] == [], page.name


def test_the_footer_carries_the_licence_year_and_not_the_default(book: Path) -> None:
    page = (book / "intro.html").read_text(encoding="utf-8")
    year = next(line for line in (ROOT / "LICENSE").read_text().splitlines() if "Copyright" in line)
    assert year.split()[2] in page[page.rindex("Copyright") :]


def test_a_sound_copy_of_the_book_builds(book_copy: Path) -> None:
    result = build(book_copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nAs {cite:t}`nobody1900nothing` shows.\n", "nobody1900nothing"),
        ("\n![a picture](no-such-picture.png)\n", "no-such-picture.png"),
        ("\n[a page](no-such-page.md)\n", "no-such-page.md"),
    ],
    ids=["a missing citation", "an image with a bad path", "a link to no page"],
)
def test_the_build_fails_on(book_copy: Path, text: str, said: str) -> None:
    _add(book_copy / "intro.md", text)
    result = build(book_copy)
    assert result.returncode != 0
    assert said in result.stdout


def test_a_page_that_loads_a_script_from_a_cdn_is_caught(book_copy: Path) -> None:
    script = '<script src="https://cdn.example.org/library.js"></script>'
    _add(book_copy / "intro.md", f"\n{script}\n")
    assert build(book_copy).returncode == 0
    assert outside_loads(book_copy / "_build" / "html") == [
        "intro.html loads https://cdn.example.org/library.js"
    ]


def test_a_dead_link_in_raw_html_is_caught(book: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(book, site)
    _add(site / "intro.html", '<a href="gone.html">x</a><a href="intro.html#gone">y</a>')
    assert dead_links(site) == [
        "intro.html leads to gone.html, which does not exist",
        "intro.html leads to intro.html#gone: no such anchor",
    ]


def test_the_index_of_equations_is_up_to_date_and_has_no_gap() -> None:
    page, gaps = equations.index()
    stored = (ROOT / "reference" / "equations.md").read_text(encoding="utf-8")
    if not chapters():
        pytest.skip("no chapter yet, so no equation can be linked")
    assert gaps == []
    assert stored == page, "run `make equations`"


def test_a_missing_link_of_an_equation_is_named(tmp_path: Path) -> None:
    for name in ("spe", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "spe" / "a.py").write_text('def f():\n    """Eqs. 3 to 5 and 7."""\n')
    (tmp_path / "tests" / "test_a.py").write_text('def test_f():\n    """Eq. 5."""\n')
    _, gaps = equations.index(tmp_path)
    assert "Eq. 4 has no test" in gaps
    assert "Eq. 5 has no chapter" in gaps
    assert "Eq. 6 has no code" in gaps
    assert not {"Eq. 4 has no code", "Eq. 5 has no test", "Eq. 7 has no code"} & set(gaps)
