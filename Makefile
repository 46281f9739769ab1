# Everything runs in .venv. To use another environment: make test BIN=/path/to/bin INSTALLED=
PYTHON ?= python3
BIN ?= .venv/bin
INSTALLED ?= .venv/.installed
PYTEST = $(BIN)/python -m pytest -q --durations=20 --durations-min=0.5
# Most of a test is one thread's work, so two run at a time. Not the slow ones: one takes up to 15 GB.
WORKERS ?= 2
AT_A_TIME = -n $(WORKERS) --dist worksteal

# The ends of what pyproject.toml allows; monet/base/torch_versions.py names them, too. They are CUDA builds where that is
# what the package index has, and run on the CPU.
NEWEST = torch==2.15.0 torchvision==0.29.2
OLDEST = torch==2.11.0 torchvision==0.26.0

.PHONY: help demo test lint types layers docs tests slow gpu gpu-first-run newest oldest cuda-builds package mutants bench coverage format clean .venv
.DEFAULT_GOAL := help

help:
	@echo "make demo      plan ResNet-50 at batch 184 for 6 GB and measure it (15 minutes, 20 GB)"
	@echo "make test      lint, types, import layers, docs and tests: what .ci/run runs"
	@echo "make docs      the pages of docs/ as a site in build/docs"
	@echo "make slow      tests that take minutes or gigabytes, and the planner's with all random examples"
	@echo "make gpu       tests that need a CUDA device; with the Python that is there: make gpu BIN=/usr/bin INSTALLED="
	@echo "make gpu-first-run  the first run on a machine with a GPU: tests, promises and times, results in first-gpu-run"
	@echo "make newest    the tests with the newest PyTorch that monet allows, in .venv-newest (6 GB)"
	@echo "make oldest    the same with the oldest, in .venv-oldest"
	@echo "make cuda-builds  the CUDA allocator built against the CUDA builds of these and of the pinned PyTorch, and loaded; needs no GPU"
	@echo "make package   wheel and sdist built, installed into fresh environments, and used there"
	@echo "make mutants   changes of the code that the tests should notice: FILES=... MOST=50 of each"
	@echo "make bench     benchmarks; results as JSON under benchmarks/results"
	@echo "make coverage  which lines the tests run"
	@echo "make format    what lint would ask for, done"
	@echo "make clean     remove the environments and everything that was built"

.venv: .venv/.installed

# One resolve for everything, under the constraints: a second one could bring another PyTorch.
# Bytecode afterwards, on all cores: pip makes it on one. Some packages carry templates, which are no Python: no error.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --no-compile -c constraints.txt -e '.[dev,docs,models,plots]'
	.venv/bin/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
	touch $@

# As .venv, with another PyTorch than constraints.txt names.
.venv-newest/.installed: TORCH = $(NEWEST)
.venv-oldest/.installed: TORCH = $(OLDEST)
.venv-newest/.installed .venv-oldest/.installed: Makefile pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -v '^torch' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/pip install --quiet --no-compile -c $(@D)/constraints.txt -e '.[dev,docs,models,plots]' $(TORCH)
	$(@D)/bin/python -m compileall -qq -j 0 -x '/tests?/' $(@D)/lib || true
	touch $@

demo: $(INSTALLED)
	$(BIN)/monet-plan --budget 6GB resnet50.yaml --measure

test: lint types layers docs tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports

# Anew each time: a page that is not read again would keep its warnings, which are errors, to itself.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -E -n -W --keep-going -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

tests: $(INSTALLED)
	$(PYTEST) $(AT_A_TIME) -m 'not slow and not gpu'

slow: $(INSTALLED)
	$(PYTEST) -m 'slow and not gpu'
	MONET_EXAMPLES=all $(PYTEST) $(AT_A_TIME) -m 'not slow and not gpu' tests/planner

gpu: $(INSTALLED)
	$(PYTEST) -m gpu

# With the Python that is there: such a machine may have no network to make an environment from.
gpu-first-run:
	$(PYTHON) benchmarks/first_gpu_run.py --out first-gpu-run

newest oldest: %: .venv-%/.installed
	$(MAKE) tests BIN=.venv-$@/bin INSTALLED=

# The package index's build of the PyTorch that constraints.txt names, which may be another one than .venv has.
.venv-cuda/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --no-compile -c constraints.txt -e . pytest
	touch $@

# Every symbol is looked up when a library is loaded: one that this PyTorch lacks is named.
cuda-builds: .venv-oldest/.installed .venv-cuda/.installed .venv-newest/.installed
	for venv in oldest cuda newest; do LD_BIND_NOW=1 .venv-$$venv/bin/python tests/support/cuda_build.py || exit 1; done

# Of what is committed. Needs the package index. TORCHES="torch==2.11.0 torch==2.15.0" and
# PYTHONS="python3.12 python3.13" for others than constraints.txt and .venv have.
package: $(INSTALLED)
	$(BIN)/python tests/support/package_check.py $(TORCHES) $(foreach python,$(PYTHONS),--python $(python))

# What a run of the tests costs is paid for each change: a file at a time, on a sample.
FILES ?= monet/plans/verifier.py
MOST ?= 50
.venv-mutants/.installed: Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet cosmic-ray==8.7.0
	touch $@

mutants: $(INSTALLED) .venv-mutants/.installed
	.venv-mutants/bin/python tests/support/mutants.py $(FILES) --most $(MOST) --python $(abspath $(BIN)/python)

bench: $(INSTALLED)
	for benchmark in benchmarks/bench_*.py; do $(BIN)/python "$$benchmark" || exit 1; done

coverage: $(INSTALLED)
	$(BIN)/coverage run -m pytest -q -m 'not slow and not gpu'
	$(BIN)/coverage report

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-cuda .venv-mutants .venv-newest .venv-oldest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
