"""The code that a chapter derives is the code of the package."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

import spe
from tools.notebooks import chapters, read
from tools.same_code import differences


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_a_chapter_shows_the_code_of_the_package(path: Path) -> None:
    assert differences(read(path)) == []


def _notebook(source: str, *tags: str) -> NotebookNode:
    return new_notebook(cells=[new_code_cell(source, metadata={"tags": list(tags)})])


@pytest.fixture
def shown() -> str:
    return inspect.getsource(spe.prototypes)


def test_the_same_function_passes_whatever_its_comments(shown: str) -> None:
    assert differences(_notebook(f"# A comment.\n{shown}", "spe-code")) == []


def test_drift_between_a_chapter_and_the_package_is_caught(shown: str) -> None:
    drifted = shown.replace("noise", "extra")
    (said,) = differences(_notebook(drifted, "spe-code"))
    assert "prototypes differs from spe/" in said


def test_a_function_that_the_package_lacks_is_caught() -> None:
    (said,) = differences(_notebook("def no_such_thing():\n    return 1", "spe-code"))
    assert "no_such_thing is missing in spe/" in said


def test_a_copy_of_package_code_without_the_tag_is_caught(shown: str) -> None:
    (said,) = differences(_notebook(shown))
    assert "tag the cell spe-code" in said
