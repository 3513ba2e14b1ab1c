"""Badge, bootstrap cell and re-execution do to a notebook what they should, and no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import execute, launch
from tools.notebooks import ROOT, read, repository, write

URL = "https://github.com/somebody/a-fork"


@pytest.fixture
def notebook() -> NotebookNode:
    cells = [new_markdown_cell("# Title"), new_code_cell("print(1 + 1)"), new_code_cell("x = 3\nx")]
    return new_notebook(cells=cells)


@pytest.fixture
def fork(tmp_path: Path, notebook: NotebookNode) -> Path:
    """A root with one chapter and the settings of a fork."""
    (tmp_path / "chapters").mkdir()
    settings = f"repository:\n  url: {URL}\n  branch: trunk\n"
    (tmp_path / "_config.yml").write_text(settings, encoding="utf-8")
    write(tmp_path / "chapters" / "ch01_one.ipynb", notebook)
    return tmp_path


def test_badge_comes_first_and_bootstrap_before_the_code(fork: Path) -> None:
    launch.main(fork)
    cells = read(fork / "chapters" / "ch01_one.ipynb").cells
    assert [cell.id for cell in cells][::2] == [launch.BADGE, launch.BOOTSTRAP, cells[4].id]
    assert (
        "colab.research.google.com/github/somebody/a-fork/blob/trunk/chapters/ch01_one.ipynb"
        in (cells[0].source)
    )
    assert f"{URL}.git" in cells[2].source
    assert "--branch=trunk" in cells[2].source


def test_a_second_launch_changes_nothing(fork: Path) -> None:
    path = fork / "chapters" / "ch01_one.ipynb"
    launch.main(fork)
    before = path.read_bytes()
    launch.main(fork)
    assert path.read_bytes() == before


def test_a_new_address_is_written_into_every_chapter(fork: Path) -> None:
    launch.main(fork)
    settings = "repository:\n  url: https://github.com/other/book\n  branch: main\n"
    (fork / "_config.yml").write_text(settings, encoding="utf-8")
    launch.main(fork)
    text = (fork / "chapters" / "ch01_one.ipynb").read_text(encoding="utf-8")
    assert "somebody" not in text
    assert text.count("other/book") == 2


def _bootstrap_source() -> str:
    return launch.bootstrap(URL, "main").source


@pytest.mark.parametrize("command", ["format --check", "check --select=E,F,I"])
def test_the_bootstrap_is_as_ruff_wants_it(command: str, tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.py"
    path.write_text(launch.bootstrap(*repository()).source + "\n", encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", *command.split(), "--line-length=100", str(path)]
    result = subprocess.run(ruff, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout


def test_the_bootstrap_does_nothing_outside_colab(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the bootstrap ran a command")

    monkeypatch.setattr(subprocess, "run", refuse)
    here, path = os.getcwd(), list(sys.path)
    exec(_bootstrap_source(), {})
    assert (os.getcwd(), sys.path) == (here, path)


def test_on_colab_the_bootstrap_clones_installs_and_changes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def record(command: list[str], check: bool) -> None:
        assert check
        commands.append(command)
        if command[0] == "git":
            (Path(command[-1]) / "chapters").mkdir(parents=True)

    (tmp_path / "content").mkdir()
    monkeypatch.chdir(tmp_path / "content")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(_bootstrap_source(), {})
    book = tmp_path / "a-fork"
    clone, install = commands
    assert {"--depth=1", "--branch=main", f"{URL}.git", str(book)} <= set(clone)
    assert "--no-deps" in install, "torch must stay what Colab has"
    assert install[-1] == str(book)
    assert Path.cwd() == book / "chapters"
    assert sys.path[0] == str(book), "the running kernel must find the package"

    commands.clear()
    exec(_bootstrap_source(), {})  # where the first one left off
    assert [command[0] for command in commands] == [sys.executable], "cloned twice"
    assert Path.cwd() == book / "chapters"


def test_executing_twice_changes_nothing(fork: Path) -> None:
    path = fork / "chapters" / "ch01_one.ipynb"
    assert execute.main([], fork) == 0
    first = path.read_bytes()
    counts = [cell.execution_count for cell in read(path).cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3]
    assert execute.main(["ch01"], fork) == 0
    assert path.read_bytes() == first


@pytest.mark.parametrize("fault", ["data", "error"])
def test_execute_leaves_a_notebook_alone_that_it_cannot_run(
    fork: Path, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fork / "chapters" / "ch01_one.ipynb"
    notebook = read(path)
    if fault == "data":
        notebook.metadata["spe"] = {"data": ["omniglot"]}
        monkeypatch.setattr(
            execute, "missing", lambda names: f"{names} cannot be had" * bool(names)
        )
    else:
        notebook.cells.append(new_code_cell("1 / 0"))
    write(path, notebook)
    before = path.read_bytes()
    assert execute.main([], fork) == 1
    assert path.read_bytes() == before
    assert "ch01_one.ipynb: left as it is" in capsys.readouterr().err
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unknown_chapter_is_an_error(fork: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (fork / "chapters" / "ch01_one.ipynb").read_bytes()
    for names in (["ch99"], ["ch01", "ch99"]):
        assert execute.main(names, fork) == 1
        assert capsys.readouterr().err == "no chapter matches ch99\n"
    assert (fork / "chapters" / "ch01_one.ipynb").read_bytes() == before


@pytest.mark.parametrize("fault", [CellTimeoutError("it hangs"), DeadKernelError("it died")])
def test_a_chapter_that_hangs_does_not_stop_later_ones(
    fork: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (fork / "chapters" / name for name in ("ch01_one.ipynb", "ch02_two.ipynb"))
    shutil.copy(first, second)
    before, tried = first.read_bytes(), []

    def run(notebook: NotebookNode, folder: Path) -> None:
        tried.append(folder)
        if len(tried) == 1:
            raise fault

    monkeypatch.setattr(execute, "execute", run)
    assert execute.main([], fork) == 1
    assert len(tried) == 2
    assert first.read_bytes() == before
    assert second.read_bytes() != before


def test_a_real_clone_has_what_the_bootstrap_expects(tmp_path: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    listed = ["git", "ls-files", "pyproject.toml", "spe/__init__.py", "experiments/__init__.py"]
    tracked = subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    assert len(tracked.split()) == 3


def test_launch_mends_a_kernelspec_alone(fork: Path) -> None:
    launch.main(fork)
    path = fork / "chapters" / "ch01_one.ipynb"
    right = path.read_text(encoding="utf-8")
    notebook = json.loads(right)
    notebook["metadata"]["kernelspec"]["name"] = "myenv"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    launch.main(fork)
    assert path.read_text(encoding="utf-8") == right
