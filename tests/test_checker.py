"""The checks themselves are checked: what is broken on purpose must be caught."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import guard, mutants
from tools.execute import execute
from tools.notebooks import KERNELSPEC, ROOT, chapters, needs, read, write

NUMBER = re.compile(r"\d")


@pytest.fixture(scope="module")
def chapter(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The chapter that runs anywhere and comes soonest to a stored number."""
    free = [notebook for path in chapters() if not needs(notebook := read(path))]
    if free:
        return min(free, key=lambda notebook: len(_head(notebook).cells))
    cells = [new_code_cell(f"print({i} / 7)") for i in range(guard.MIN_COMPARED)]
    made = new_notebook(cells=cells, metadata={"kernelspec": dict(KERNELSPEC)})
    return execute(made, tmp_path_factory.mktemp("made"))


def _has_number(cell: NotebookNode) -> bool:
    outputs = cell.get("outputs", [])
    return any(o.output_type == "stream" and NUMBER.search(o.text) for o in outputs)


def _head(notebook: NotebookNode) -> NotebookNode:
    """A copy of a chapter, up to its first stored number: quick to run."""
    head = copy.deepcopy(notebook)
    first = next((i for i, cell in enumerate(head.cells) if _has_number(cell)), len(head.cells))
    head.cells = head.cells[: first + 1]
    return head


def _nbval(notebook: NotebookNode, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "copy.ipynb"
    write(path, notebook)
    sanitizers = f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval.cfg'}"
    options = ["-q", "--nbval", "--nbval-current-env", sanitizers, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True)


def _change_a_number(notebook: NotebookNode) -> None:
    """Add one to the first digit of the first stored number, modulo ten."""
    cell = next(cell for cell in notebook.cells if _has_number(cell))
    stream = next(o for o in cell.outputs if o.output_type == "stream" and NUMBER.search(o.text))
    stream.text = NUMBER.sub(lambda digit: str((int(digit[0]) + 1) % 10), stream.text, count=1)


def test_an_unchanged_copy_of_a_chapter_passes_nbval(chapter: NotebookNode, tmp_path: Path) -> None:
    result = _nbval(_head(chapter), tmp_path)
    assert result.returncode == 0, result.stdout


def test_a_changed_number_in_a_stored_output_fails_nbval(
    chapter: NotebookNode, tmp_path: Path
) -> None:
    broken = _head(chapter)
    _change_a_number(broken)
    result = _nbval(broken, tmp_path)
    assert result.returncode == 1
    assert "1 failed" in result.stdout


def test_stripped_outputs_fail_the_guard(chapter: NotebookNode) -> None:
    broken = copy.deepcopy(chapter)
    assert guard.complaints(broken) == []
    for cell in guard.code_cells(broken):
        cell.outputs, cell.execution_count = [], None
    found = guard.complaints(broken)
    assert any("never executed" in text for text in found)
    assert any("compared outputs" in text for text in found)


def test_outputs_stripped_but_counted_fail_the_guard(chapter: NotebookNode) -> None:
    broken = copy.deepcopy(chapter)
    for cell in guard.code_cells(broken):
        cell.outputs = []
    assert any("compared outputs" in text for text in guard.complaints(broken))


def _spoil(notebook: NotebookNode, how: str) -> None:
    cell = guard.code_cells(notebook)[-1]
    if how == "order":
        cell.execution_count += 1
    elif how == "error":
        cell.outputs = [new_output("error", ename="E", evalue="", traceback=[])]
    elif how == "stderr":
        cell.outputs = [new_output("stream", name="stderr", text="a warning")]
    elif how == "machine path":
        cell.outputs = [new_output("stream", name="stdout", text="saved in /home/me/spe")]
    elif how == "heavy picture":
        data = {"image/png": "A" * (guard.MAX_PICTURE * 2)}
        cell.outputs = [new_output("display_data", data=data)]
    elif how == "table":
        data = {"text/markdown": "| a | b |\n|---|--:|\n| 1 | 2 |"}
        cell.outputs = [new_output("display_data", data=data)]
    elif how == "tag":
        cell.metadata["tags"] = ["no-such-tag"]
    elif how == "skip":
        cell.metadata["tags"] = ["nbval-skip"]
    elif how == "marker":
        cell.source = "# NBVAL_IGNORE_OUTPUT\n" + cell.source
    elif how == "role":
        notebook.cells.append(new_markdown_cell("See {cite:p}`somebody`."))
    elif how == "directive":
        notebook.cells.append(new_markdown_cell("```{note}\nRaw in Colab.\n```"))
    elif how == "data":
        notebook.metadata["spe"] = {"data": ["no-such-set"]}
    elif how == "kernelspec":
        del notebook.metadata["kernelspec"]
    elif how == "long cell":
        cell.source = "\n".join(["x = 1"] * (guard.MAX_LINES + 1))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("order", "execution counts"),
        ("error", "stores an error"),
        ("stderr", "writes to stderr"),
        ("machine path", "path of a machine"),
        ("heavy picture", "a picture weighs"),
        ("table", "Markdown table"),
        ("tag", "unknown tags"),
        ("skip", "only the bootstrap"),
        ("marker", "NBVAL comment"),
        ("role", "Colab shows raw"),
        ("directive", "Colab shows raw"),
        ("data", "unknown data sets"),
        ("kernelspec", "kernelspec"),
        ("long cell", "more than"),
    ],
)
def test_the_guard_names_each_fault(chapter: NotebookNode, how: str, said: str) -> None:
    broken = copy.deepcopy(chapter)
    _spoil(broken, how)
    assert any(said in text for text in guard.complaints(broken))


def test_a_notebook_without_its_data_set_is_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = new_notebook(cells=[new_markdown_cell("# A"), new_code_cell("1 / 0")])
    made.metadata["spe"] = {"data": ["omniglot"]}
    write(pytester.path / "needs.ipynb", made)
    pytester.makeconftest(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import tools.data
        tools.data.problem = lambda name: f"data set {{name!r}} cannot be had here: it is far away"
        from conftest_of_the_book import *
        """
    )
    source = (ROOT / "conftest.py").read_text(encoding="utf-8")
    pytester.makepyfile(conftest_of_the_book=source)
    result = pytester.runpytest_subprocess("-rs", "--nbval", "--nbval-current-env")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs.ipynb: data set 'omniglot'*far away*"])


def test_pytest_collects_neither_the_build_nor_the_environment(pytester: pytest.Pytester) -> None:
    for name in ("pyproject.toml", "tests/nbval.cfg"):
        target = pytester.path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    made = new_notebook(cells=[new_code_cell("1 / 0")])
    for folder in ("_build", ".venv", "_mathjax", "data", "chapters"):
        (pytester.path / folder).mkdir()
        write(pytester.path / folder / "notebook.ipynb", made)
    for arguments in (["--nbval"], ["--nbval", "."]):
        result = pytester.runpytest_subprocess("--collect-only", "-q", *arguments)
        listed = [line for line in result.outlines if "::" in line]
        assert [line.split("/")[0] for line in listed] == ["chapters"]


@pytest.mark.parametrize("fault", mutants.FAULTS, ids=lambda fault: f"{fault.file} {fault.name}")
def test_every_fault_of_make_mutants_still_has_its_place(fault: mutants.Fault) -> None:
    text = (ROOT / "spe" / fault.file).read_text(encoding="utf-8")
    assert mutants.apply(fault, text) != text


def test_a_word_that_no_fault_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["noise", "gausian"]) == 1
    assert capsys.readouterr() == ("", "no fault has 'gausian' in its name\n")
