# `make book` builds the book, `make test` runs all tests; both set up what they need.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q -c constraints.txt
# Files side by side, each in one process: a notebook's cells share a kernel.
PYTEST := $(PY) -m pytest --nbval --numprocesses auto --maxprocesses 4 --dist loadfile
CODE := $(wildcard spe experiments tools tests benchmarks conftest.py chapters)
TYPED := $(wildcard spe experiments tools)
PAGES := _config.yml _toc.yml intro.md references.bib \
  $(wildcard reference/*.md chapters/*.ipynb _static/* tools/*.py benchmarks/results/*)
PORTABLE := $(wildcard chapters/ch0[1-7]_*.ipynb chapters/ch09_*.ipynb chapters/ch1[1-7]_*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help book serve install test digits lint format execute launch equations bench mutants constraints clean

help:
	@echo "make book      build the book into _build/html (installs what that needs, not torch)"
	@echo "make serve     serve the built book on http://127.0.0.1:8000"
	@echo "make test      install everything, then run all checks and tests"
	@echo "make digits    run Part I and the results chapters as on a CPU without vector units"
	@echo "make install   install everything into .venv"
	@echo "make execute   re-execute every chapter in place (ONLY=ch03 for one)"
	@echo "make launch    write Colab badges and bootstrap cells from the address in _config.yml"
	@echo "make equations write the index of equations"
	@echo "make format    format the code, notebooks included"
	@echo "make bench     measure speed and memory"
	@echo "make mutants   check that the tests catch faults put into the core"
	@echo "make clean     remove what was built (not .venv, not data)"

# Stamps inside .venv: nothing is installed twice, and a removed .venv takes its stamps along.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "This book needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-book: pyproject.toml constraints.txt tools/requirements.py | $(VENV)/.stamp-venv
	$(PY) tools/requirements.py book > $(VENV)/book.txt
	$(PIP) -r $(VENV)/book.txt
	@touch $@

# torch and torchvision come in one command, from one place: a mixed pair does not import.
$(VENV)/.stamp-install: pyproject.toml constraints.txt | $(VENV)/.stamp-venv
	$(PIP) torch torchvision -e '.[full,book,test,cluster,bench]'
	@touch $@

install: $(VENV)/.stamp-install

book: _build/.stamp-html
	@echo "The book is built: open _build/html/index.html in a browser, or run \`make serve\`."

# The stamp lies in the folder that every build empties first, so a failed build leaves none.
_build/.stamp-html: $(VENV)/.stamp-book $(PAGES)
	$(PY) -m tools.build
	@touch $@

serve: _build/.stamp-html
	$(PY) -m http.server --bind 127.0.0.1 --directory _build/html 8000

test: lint
	$(PYTEST)

# Stored numbers must be those of any CPU, so these chapters also run with torch's plainest kernels.
digits: $(VENV)/.stamp-install
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(PYTEST) -q $(PORTABLE)

lint: $(VENV)/.stamp-install
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(TYPED)

format: $(VENV)/.stamp-install
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

execute: $(VENV)/.stamp-install
	$(PY) -m tools.execute $(ONLY)

launch: $(VENV)/.stamp-install
	$(PY) -m tools.launch

equations: $(VENV)/.stamp-install
	$(PY) -m tools.equations

bench: $(VENV)/.stamp-install
	$(PY) -m benchmarks

mutants: $(VENV)/.stamp-install
	$(PY) -m tools.mutants

constraints: $(VENV)/.stamp-install
	$(PY) -m tools.constraints

clean:
	rm -rf _build _mathjax .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
