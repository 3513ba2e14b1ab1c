"""The package installs light, and the commands around the book do what they say."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import spe
from tools import constraints
from tools.notebooks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)


def test_importing_spe_needs_torch_and_numpy_alone() -> None:
    others = [
        "matplotlib", "pandas", "PIL", "safetensors", "scipy", "seaborn", "sklearn",
        "torchvision", "tqdm", "yaml", "distributed",
    ]  # fmt: skip
    code = f"""
import sys
for name in {others!r}:
    sys.modules[name] = None  # an import of it now raises ImportError
import spe, spe.data, spe.episodes, spe.training, spe.evaluation
"""
    result = _python(code)
    assert result.returncode == 0, result.stderr


def test_torchvision_fits_torch() -> None:
    result = _python("import torchvision; torchvision.ops.nms")
    assert result.returncode == 0, result.stderr


def test_the_distribution_and_the_citation_have_the_version_of_the_package() -> None:
    assert version("stochastic-prototype-embeddings") == spe.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {spe.__version__}" in citation


def test_bounds_are_loose_and_constraints_are_exact() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *itertools.chain.from_iterable(extras)]
    assert [name for name in wanted if "==" in name or ">=" not in name] == []
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in pins if line and not line.startswith("#")]
    if not pins:
        pytest.skip("the pins are lifted, to try the newest versions")
    assert [line for line in pins if line.count("==") != 1 or "@" in line] == []
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    assert {name.split(">=")[0] for name in wanted} - pinned == set()


def test_pins_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "constraints.txt"
    constraints.main(tmp_path)
    assert "\nnumpy==" in pins.read_text(encoding="utf-8")
    pins.write_text("old", encoding="utf-8")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        constraints.main(tmp_path)
    assert pins.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [pins]


def test_building_the_book_needs_no_torch() -> None:
    heavy = ("torch", "torchvision", "scikit-learn")
    assert not [r for r in PROJECT["optional-dependencies"]["book"] if r.startswith(heavy)]
    code = """
import sys
for name in ("torch", "torchvision", "spe"):
    sys.modules[name] = None
import tools.build, tools.mathjax, tools.equations, tools.site
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A make that runs this test must not hand its own settings down.
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=clean, text=True, capture_output=True
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that holds what make needs to set up, and nothing installed."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    for name in ("_config.yml", "_toc.yml", "intro.md", "references.bib"):
        (tmp_path / name).touch()
    (tmp_path / "tools").mkdir()
    shutil.copy2(ROOT / "tools" / "requirements.py", tmp_path / "tools")
    return tmp_path


def _fake_python(folder: Path, body: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return f"PYTHON={path}"


def test_a_missing_venv_module_is_named_with_its_remedy(bare: Path) -> None:
    fake = _fake_python(bare, 'case "$*" in *ensurepip*) exit 1;; esac')
    result = _make(bare, "book", fake)
    assert result.returncode != 0
    assert "apt install python3-venv" in result.stderr
    assert not (bare / ".venv").exists()


def test_an_old_python_is_refused_by_name(bare: Path) -> None:
    fake = _fake_python(bare, 'case "$*" in *version_info*) exit 1;; esac')
    result = _make(bare, "book", fake)
    assert result.returncode != 0
    assert "Python 3.11" in result.stderr


def test_a_second_make_does_nothing(bare: Path) -> None:
    (bare / ".venv").mkdir()
    (bare / "_build").mkdir()
    stamps = [bare / ".venv" / f".stamp-{name}" for name in ("venv", "book", "install")]
    for stamp in (*stamps, bare / "_build" / ".stamp-html"):
        stamp.touch()
    for target in ("book", "install"):
        said = _make(bare, "-n", target).stdout
        assert "pip" not in said
        assert "tools.build" not in said
    os.utime(bare / "intro.md", (2**32, 2**32))
    assert "tools.build" in _make(bare, "-n", "book").stdout
    os.utime(bare / "constraints.txt", (2**32, 2**32))
    for target in ("book", "install"):
        assert "pip" in _make(bare, "-n", target).stdout


def test_the_examples_of_the_readme_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
        assert capsys.readouterr().out.startswith("tensor(")
