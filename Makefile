# tailrace: every command sets up what it needs, and does it once.
#   make serve PORT=8000 HOST=127.0.0.1 MODEL=path-or-hub-id ARGS="--max-num-seqs 32"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?=
ARGS ?=
MODEL_FLAG := $(if $(MODEL),--model $(MODEL))
NATIVE := CMakeLists.txt pyproject.toml $(wildcard csrc/*)

.PHONY: install serve chat test test-long bench lint format lock clean
.DELETE_ON_ERROR:

install: $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'

# Third-party packages, at the locked versions.
$(VENV)/.packages: pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing packages into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --requirement requirements.lock
	@touch $@

# tailrace itself, editable; again only when something compiled has changed.
$(VENV)/.installed: $(VENV)/.packages $(NATIVE)
	@echo "building the C++ kernels"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

serve: install
	$(BIN)/tailrace serve $(MODEL_FLAG) --host $(HOST) --port $(PORT) $(ARGS)

chat: install
	$(BIN)/tailrace chat $(MODEL_FLAG) $(ARGS)

test: lint
	$(BIN)/python -m pytest -m "not long" $(ARGS)

test-long: install
	$(BIN)/python -m pytest -m long $(ARGS)

bench: install
	$(BIN)/tailrace bench serve $(ARGS)
	$(BIN)/tailrace bench kernels

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Re-make the lock from what is installed now.
lock: install
	@{ echo "# Exact versions that are tested; used as pip constraints (-c). Made by: make lock"; \
	   $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//'; } > requirements.lock

clean:
	rm -rf build $(VENV) .pytest_cache .ruff_cache .hypothesis
