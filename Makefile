# Everything a fresh clone needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/demo
# A worker per processor, each with whole files of tests; the slowest are printed at the end.
PARALLEL := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --durations=15

# Slow tests wait for processes of their own, so two processors have time for a third worker.
MORE := $(shell [ "$$(getconf _NPROCESSORS_ONLN)" -gt 3 ] && echo 4 || echo 3)
SLOW = $(subst --numprocesses=auto,--numprocesses=$(MORE),$(PARALLEL))

# Folders in which nothing is compiled, without three files that take long.
FAST := $(addprefix tests/,config console data monitoring project studies tokenization)
FAST += $(addprefix --ignore=tests/,project/test_extending.py project/test_gpu_scripts.py data/preparation/test_beam.py)

.PHONY: install demo lint format docs test test-fast test-all requirements clean

install: $(VENV)/.installed

# The pinned file, with hashes, serves Python 3.11 on Linux x86-64; elsewhere pip takes the newest that pyproject.toml allows.
# pip would compile 20,000 modules, half of its time; Python itself compiles those that are imported.
$(VENV)/.installed: pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else f"bert_jax needs Python 3.11, 3.12 or 3.13; $(PYTHON) is {sys.version.split()[0]}. Try: make install PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -c 'import platform, sys; sys.exit((sys.version_info[:2], sys.platform, platform.machine()) != ((3, 11), "linux", "x86_64"))'; then \
	  echo "installing the pinned requirements (about 2 GB on disk)" && \
	  $(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements.txt && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . ; \
	else \
	  echo "installing the newest versions that pyproject.toml allows (about 2 GB on disk)" && \
	  $(BIN)/python -m pip install --quiet --no-compile -e '.[dev]' ; \
	fi
	touch $@

demo: install
	$(BIN)/bert-jax demo --workdir=$(WORKDIR)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Offline; a broken link, a missing name or any other warning ends it. The variable silences an advertisement.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Tests compile without optimization (tests/support/processes.py), and those that are marked `optimized` as users do.
test: install
	$(BIN)/python -m pytest $(PARALLEL)

# About a minute on two threads, to run after each change.
test-fast: install
	$(BIN)/python -m pytest $(PARALLEL) $(FAST)

test-all: install build/libtpu/.installed build/cuda/.installed
	PYTHONPATH=$(CURDIR)/build/libtpu $(BIN)/python -m pytest $(SLOW) -m 'slow and not optimized'
	BERT_JAX_OPTIMIZED=1 $(BIN)/python -m pytest $(SLOW) -m 'slow and optimized' \
	  $$(grep -rl --include='test_*.py' 'mark\.optimized' tests)

# The TPU compiler that a launch installs (210 MB), for the tests of `plan`. It stays out of .venv, where JAX would look for
# a TPU, and complain that there is none, each time it starts.
build/libtpu/.installed: bert_jax/tools/pods/requirements.txt | install
	mkdir -p build/libtpu
	sed -n '/^libtpu==/,/[^\\]$$/p' bert_jax/tools/pods/requirements.txt > build/libtpu/requirements.txt
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(BIN)/python -m pip install --quiet --no-deps --require-hashes --upgrade --target build/libtpu -r build/libtpu/requirements.txt; \
	else \
	  echo "there is no TPU compiler for this machine; its tests will be skipped"; \
	fi
	touch $@

# The compiler for NVIDIA GPUs, which is in JAX's plugin (400 MB), likewise: it needs no GPU.
build/cuda/.installed: requirements.txt | install
	mkdir -p build/cuda
	@version=$$(sed -n 's/^jaxlib==\([0-9.]*\).*/\1/p' requirements.txt); \
	if [ "$$(uname -sm)" = "Linux x86_64" ] && $(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/cuda \
	  jax-cuda13-plugin==$$version jax-cuda13-pjrt==$$version; then \
	  touch $@; \
	else \
	  echo "there is no compiler for GPUs for this machine; its tests will be skipped"; \
	fi

# Pins that are in the files stay unless pyproject.toml excludes them; delete the first to take the newest of everything.
# The second is what `bert-jax launch tpu` installs on the workers.
requirements:
	uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command 'make requirements' \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --extra dev --no-emit-package bert-jax --output-file requirements.txt pyproject.toml
	uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command 'make requirements' \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_31 --constraint requirements.txt \
	  --extra tpu --extra gcs --no-emit-package bert-jax --output-file bert_jax/tools/pods/requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) build *.egg-info
