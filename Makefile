# Two commands to begin with: `make demo` and `make test`. Both install what they need into .venv first.
# `make demo VIDEOS=DIR` trains and reports on videos of one's own, with a manifest.csv, in place of a simulated kitchen.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INTERCHANGE := .venv-lerobot
OGBENCH := .venv-ogbench
FLOORS := .venv-floors
WHEEL := .venv-wheel
# lerobot 0.6 needs Python 3.12 or later; the first that runs is taken.
INTERCHANGE_PYTHON ?= $(firstword $(foreach python,python3.12 python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.1[23]*/bin/python),\
	$(shell $(python) -c 'import sys; sys.version_info >= (3, 12) and print(sys.executable)' 2>/dev/null)))
DEMO_DATA ?= runs/demo-data
DEMO_RUN ?= runs/demo

# Half of the tests on each of two cores, each with one thread, and a core that is done takes tests from the other; a
# process that dies ends the run, which would else hang.
SPREAD := -n auto --dist worksteal --max-worker-restart 0
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD)

# Tests start hundreds of processes; compiled files are kept, so that not each of them compiles the library anew.
unexport PYTHONDONTWRITEBYTECODE

# macOS has a backend of its own, and refuses EGL.
ifeq ($(shell uname -s),Linux)
export MUJOCO_GL ?= $(if $(DISPLAY),,egl)
endif

.PHONY: demo test test-all test-release test-floors test-wheel lint docs docs-serve interchange interchange-ogbench benchmarks system clean

ifdef VIDEOS
demo: $(VENV)/.installed
	$(BIN)/counterpoint train decisionnce_p-videos --data $(VIDEOS) --out $(DEMO_RUN)-videos
	$(BIN)/counterpoint report $(DEMO_RUN)-videos
else
demo: $(VENV)/.installed system
	$(BIN)/counterpoint collect kitchen --scene shared --episodes 12 --val-episodes 2 --test-episodes 4 --out $(DEMO_DATA)
	$(BIN)/counterpoint train decisionnce_t-demo --data $(DEMO_DATA) --out $(DEMO_RUN)
	$(BIN)/counterpoint report $(DEMO_RUN)
endif

# `make test TESTS=tests/data` runs the tests of a folder or of files alone; so do the four targets below.
test: $(VENV)/.installed system
	$(PYTEST) -m "not slow" $(TESTS)

# Runs the slow tests too: kills, objectives in several processes, simulators.
test-all: $(VENV)/.installed system
	$(PYTEST) -m "not release" $(TESTS)

# The tests of a release take minutes each: gates of learning, whole studies, experts over tens of scenes, Ray.
test-release: $(VENV)/.installed system
	$(PYTEST) -m release $(TESTS)

# The oldest releases that pyproject.toml admits, in an environment of their own; simulators as ever.
test-floors: | system
	$(PYTHON) -m venv --clear $(FLOORS)
	$(FLOORS)/bin/pip install --quiet uv
	$(FLOORS)/bin/uv pip install --quiet --python $(FLOORS)/bin/python --resolution lowest-direct \
		--constraint constraints.txt \
		--editable ".[clip,vision,text,sim,robosuite,diffusion,minari,hdf5,rlds,mcap,zarr,report,view,track,rl,dev]"
	OMP_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest $(SPREAD) -m "not slow" $(TESTS)

# The wheel, in an environment and a folder that know nothing of this one. What reads the sources stays out.
test-wheel: | system
	rm -rf build/wheel && mkdir -p build/wheel/away
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(WHEEL)/bin/pip install --quiet --constraint constraints.txt "$$(echo build/wheel/counterpoint-*.whl)[all,dev]"
	cp -r tests docs examples studies benchmarks README.md CHANGELOG.md CITATION.cff pyproject.toml constraints.txt build/wheel/away
	cd build/wheel/away && OMP_NUM_THREADS=1 $(CURDIR)/$(WHEEL)/bin/python -m pytest $(SPREAD) -m "not slow" \
		--ignore tests/test_architecture.py $(TESTS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs-installed
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.docs-installed
	$(BIN)/mkdocs serve

# The real `lerobot` package needs another Python and an older torch, so it lives in an environment of its own, beside
# the wheel of this library.
interchange: $(INTERCHANGE)/.installed
	$(INTERCHANGE)/bin/pip install --quiet --no-deps --force-reinstall . ./lerobot_policy_counterpoint
	SDL_VIDEODRIVER=dummy $(INTERCHANGE)/bin/python -m pytest tests/interchange

interchange-ogbench: $(OGBENCH)/.installed
	$(OGBENCH)/bin/pip install --quiet --no-deps --force-reinstall .
	PYTHONPATH=$(OGBENCH)/ogbench/impls $(OGBENCH)/bin/python -m pytest tests/interchange/test_ogbench_loop.py

benchmarks: $(VENV)/.installed system
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/collection.py

# robosuite's keyboard package is compiled when it is installed, so what the system lacks comes first.
# Python compiles a file when it is first imported: most files of these packages never are.
$(VENV)/.installed: pyproject.toml constraints.txt | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[all,dev]"
	touch $@

$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[docs]"
	touch $@

# LeRobot's Meta-World is older than mujoco 4 and fails with it.
$(INTERCHANGE)/.installed: pyproject.toml | system
	@test -n "$(INTERCHANGE_PYTHON)" || { echo "make interchange needs Python 3.12 or 3.13, which lerobot asks for; none was found." \
		"Name one: make interchange INTERCHANGE_PYTHON=/path/to/python"; exit 2; }
	$(INTERCHANGE_PYTHON) -m venv --clear $(INTERCHANGE)
	$(INTERCHANGE)/bin/pip install --quiet --upgrade pip
	$(INTERCHANGE)/bin/pip install --quiet --no-compile "lerobot[evaluation,diffusion,pusht,metaworld]>=0.6,<0.7" "mujoco>=3.3,<3.4" pytest pytest-timeout hypothesis ".[lerobot,text,vision,diffusion,hdf5,rlds,mcap,zarr,minari]"
	touch $@

# OGBench's agents and evaluation are in its repository, not in its package.
$(OGBENCH)/.installed: pyproject.toml | system
	$(PYTHON) -m venv --clear $(OGBENCH)
	git clone --quiet https://github.com/seohongpark/ogbench $(OGBENCH)/ogbench
	git -C $(OGBENCH)/ogbench checkout --quiet 1d41409
	$(OGBENCH)/bin/pip install --quiet --upgrade pip
	$(OGBENCH)/bin/pip install --quiet --no-compile jax flax optax distrax ml_collections tqdm ".[sim,dev]"
	touch $@

# MuJoCo renders through EGL and one test drives Chromium; both come from the system.
system:
	@bash scripts/system-packages.sh

clean:
	rm -rf $(VENV) $(INTERCHANGE) $(OGBENCH) site .pytest_cache .mypy_cache .ruff_cache
