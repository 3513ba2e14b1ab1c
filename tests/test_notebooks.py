"""Every chapter was run from top to bottom and carries what it should, no less and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tools import guard, launch
from tools.notebooks import ROOT, chapters, needs, read, repository

each_chapter = pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)


@each_chapter
def test_a_chapter_was_executed_in_order_and_carries_nothing_stray(path: Path) -> None:
    assert guard.complaints(read(path)) == []


@each_chapter
def test_badge_and_bootstrap_cell_follow_the_address_in_the_config(path: Path) -> None:
    notebook = read(path)
    assert not launch.synchronise(notebook, *repository(), path.name), "run `make launch`"


def test_every_chapter_is_in_the_table_of_contents() -> None:
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    listed = [entry["file"] for part in parts for entry in part["chapters"]]
    numbered = [name for name in listed if name.startswith("chapters/")]
    assert numbered == [f"chapters/{path.stem}" for path in chapters()]


def test_part_one_and_the_results_chapters_need_no_data_set() -> None:
    anywhere = ("ch01", "ch02", "ch03", "ch04", "ch05", "ch06", "ch09", "ch12", "ch13")
    free = [path for path in chapters() if path.name.startswith(anywhere)]
    assert [path.name for path in free if needs(read(path))] == []


def test_the_address_stands_in_the_config_alone() -> None:
    slug = repository()[0].removeprefix("https://github.com/")
    names = ("*.md", "*.toml", "*.cff", "Makefile", "tools/*.py", "spe/**/*.py", "reference/*.md")
    texts = [path for name in names for path in ROOT.glob(name)]
    assert [path.name for path in texts if slug in path.read_text(encoding="utf-8")] == []
