# Two commands matter: `make quickstart` and `make test`. VENV and PYTHON choose another environment,
# TEST_EXTRAS what of pyproject.toml the tests get: with dali120 those of the DALI loader run as well, with onnx
# those of ONNX. UV is the path of uv, where that is to fill the environments; without it pip does.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The Pythons of test-wheel, one or several.
WHEEL_PYTHON ?= $(PYTHON)
LOWEST_VENV ?= .venv-lowest
PADDLE_GPU_VENV ?= .venv-paddle-gpu
PADDLEX_VENV ?= .venv-paddlex
TRACKERS_VENV ?= .venv-trackers
TEST_EXTRAS ?= cpu,dev
# Begins a command that installs into the environment of folder $(1).
install = $(if $(UV),$(UV) pip install -q --python $(1)/bin/python,$(1)/bin/python -m pip install -q)

.PHONY: help setup setup-test quickstart lint test test-fast test-slow test-all test-core test-lowest test-paddle-gpu test-gpu test-trackers test-paddlex test-store compare mutate bench docs site dist
.PHONY: test-wheel clean

help:
	@echo "make setup          virtual environment $(VENV) with the CPU build"
	@echo "make quickstart     setup, write the motion data set, train TSM, validate, print top-1"
	@echo "make test           setup with the test extras, lint, all tests but the slow ones"
	@echo "make test-all       make test, then the slow tests: whole runs and long trials"
	@echo "make test-core      the tests of the core, without extensions/, sources/, jobs/ and apps/"
	@echo "make test-lowest    the suite on the oldest version of every package, paddlepaddle 2.6.2 too, in $(LOWEST_VENV)"
	@echo "make test-paddle-gpu  the suite on paddlepaddle-gpu 2.6.2, in $(PADDLE_GPU_VENV); without a GPU on the CPU"
	@echo "make test-gpu       the suite for a GPU, in $(VENV); without one it says what it would run, and why not"
	@echo "make test-trackers  the tests of TensorBoard, W&B and MLflow, offline, in $(TRACKERS_VENV)"
	@echo "make test-paddlex   PaddleX itself on this toolkit, in $(PADDLEX_VENV); takes ten minutes"
	@echo "make test-store     fifty trainings with output in S3, killed and with faults; takes six minutes"
	@echo "make compare REV=x  losses, parameters and metrics of this tree and of revision x, bit for bit"
	@echo "make mutate         80 random changes of single lines: how many do the tests notice? takes half an hour"
	@echo "make test-wheel     dist, then its commands in a new environment and an empty folder"
	@echo "make dist           a wheel and an sdist in dist/, checked for PyPI"
	@echo "make lint | bench | docs | clean"
	@echo "make site           docs/ as a searchable site in both languages, in build/html"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make an environment once per change of pyproject.toml.
$(VENV)/.cpu: pyproject.toml | $(BIN)/python
	$(call install,$(VENV)) -e ".[cpu]"
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(call install,$(VENV)) -e ".[$(TEST_EXTRAS)]"
	touch $(VENV)/.cpu $@

setup: $(VENV)/.cpu

setup-test: $(VENV)/.test

quickstart: setup
	$(BIN)/paddlevideo-fast data motion
	$(BIN)/paddlevideo-fast train tsm_motion

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint test-fast

test-fast: setup-test
	$(BIN)/python -m pytest -n 2 -m "not slow" --max-cpu-sec=10 $(PYTEST_ARGS)

# The slow tests are whole runs and long trials.
test-slow: setup-test
	$(BIN)/python -m pytest -n 2 -m slow $(PYTEST_ARGS)

test-all: test test-slow

# The tests of the core in a copy of this tree without extensions/, sources/, jobs/ and apps/.
test-core: setup-test
	$(BIN)/python tests/core_alone.py $(PYTEST_ARGS)

# The lower bounds of pyproject.toml, all at once. Only uv installs lowest versions; fleet of Paddle 2.6 needs protobuf<7.
test-lowest:
	test -x $(LOWEST_VENV)/bin/python || $(PYTHON) -m venv $(LOWEST_VENV)
	$(if $(UV),,$(LOWEST_VENV)/bin/python -m pip install -q uv)
	$(or $(UV),$(LOWEST_VENV)/bin/uv) pip install -q --python $(LOWEST_VENV)/bin/python --resolution lowest-direct \
		-e ".[cpu,dev,onnx,trackers]" "protobuf>=4.21,<7"
	$(LOWEST_VENV)/bin/python -m pytest -n 2 $(PYTEST_ARGS)

# A GPU build of Paddle on a machine without a GPU computes on the CPU.
test-paddle-gpu:
	test -x $(PADDLE_GPU_VENV)/bin/python || $(PYTHON) -m venv $(PADDLE_GPU_VENV)
	$(call install,$(PADDLE_GPU_VENV)) "paddlepaddle-gpu==2.6.2" "protobuf<7" setuptools -e ".[dev]"
	$(PADDLE_GPU_VENV)/bin/python -m pytest -n 2 $(PYTEST_ARGS)

# The extra `cpu` would write the CPU build of Paddle over the GPU build that is there.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call install,$(VENV)) -e ".[dev]"
	touch $@

# On a machine with a GPU and paddlepaddle-gpu in $(VENV); elsewhere it says what it would run, and why not. With
# GPU_SUITE_DEVICE=cpu it is a rehearsal on the CPU.
test-gpu: $(if $(filter cpu,$(GPU_SUITE_DEVICE)),setup-test,$(VENV)/.dev)
	@$(BIN)/python -c "import paddlevideo_fast, paddle" || \
		{ echo "$(VENV) has no Paddle that works; docs/en/quick_start.md says which one your GPU needs"; exit 1; }
	DALI_TEST_GPU=0 $(BIN)/python -m pytest tests/gpu tests/extensions/dali/test_dali.py $(PYTEST_ARGS)

test-trackers:
	test -x $(TRACKERS_VENV)/bin/python || $(PYTHON) -m venv $(TRACKERS_VENV)
	$(call install,$(TRACKERS_VENV)) -e ".[cpu,dev,trackers]"
	$(TRACKERS_VENV)/bin/python -m pytest tests/extensions/trackers/test_trackers.py tests/extensions/trackers/test_trackers_run.py

# PADDLEX_CONFIGS is a folder of PaddleX's YAML files for training; without it the trial writes files of their form.
# PADDLEX_MODELS chooses modules; without it the trial takes all three.
test-paddlex:
	test -x $(PADDLEX_VENV)/bin/python || $(PYTHON) -m venv $(PADDLEX_VENV)
	$(call install,$(PADDLEX_VENV)) "paddlex[video]==3.7.2" "paddlepaddle==3.3.1" -r requirements_paddlex.txt
	$(PADDLEX_VENV)/bin/python tests/apps/paddlex/trial.py $(if $(PADDLEX_CONFIGS),--configs $(PADDLEX_CONFIGS)) \
		$(if $(PADDLEX_MODELS),--models $(PADDLEX_MODELS))

# Fifty trainings with output in S3, killed and with faults among them; about six minutes.
test-store: setup-test
	$(BIN)/python tests/store_trial.py

compare: setup-test
	$(BIN)/python tests/compare_revisions.py $(REV)

mutate: setup-test
	$(BIN)/python tests/mutate.py

bench: setup-test
	for name in exactness reader loader shift trainer; do $(BIN)/python tools/benchmark.py $$name || exit 1; done

docs: setup-test
	$(BIN)/python tools/config_reference.py --lang en > docs/en/config_reference.md
	$(BIN)/python tools/config_reference.py --lang zh-CN > docs/zh-CN/config_reference.md
	$(BIN)/python tools/model_zoo.py
	$(BIN)/python tools/benchmark.py tables

site: | $(BIN)/python
	$(call install,$(VENV)) -e ".[site]"
	mkdir -p build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The commands of the wheel in a new environment and an empty folder.
test-wheel: dist
	for python in $(WHEEL_PYTHON); do \
		rm -rf build/wheel-venv && $$python -m venv build/wheel-venv && $$python --version && \
		$(call install,build/wheel-venv) "$$(echo dist/*.whl)[cpu]" && \
		$(BIN)/python tests/wheel_trial.py build/wheel-venv/bin/paddlevideo-fast || exit 1; \
	done

dist: setup-test
	$(call install,$(VENV)) build twine
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# What the commands above have made, but for what a training has: output/ holds weights. Environments with other
# names are not ours.
clean:
	rm -rf $(filter .venv%,$(VENV) $(LOWEST_VENV) $(PADDLE_GPU_VENV) $(PADDLEX_VENV) $(TRACKERS_VENV)) build dist \
		.pytest_cache .mypy_cache .ruff_cache
