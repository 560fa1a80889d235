# Everything a person, a hook or CI runs. Each target sets up what it needs, and nothing twice.
#
#   make serve [PORT=8000] [HOST=127.0.0.1] [MODEL=…] [ARGS="--dtype float32"]
#   make chat  [MODEL=…] [ARGS=…]
#   make check FILES="src/tailrace/text/utf8.py …"   what a change to these files may break, in seconds
#   make test | test-long [PART="tests/sampling packages/conform/tests"] | test-clients | test-page | test-peers | test-models | test-vllm | test-vllm-ray | test-llama-cpp | test-transformers | test-aphrodite | test-exllamav3 | test-gguf | test-sglang | test-ray | test-gpu | test-oldest | lint | docs
#   make bench [BENCH="serve sampler knobs kernels"] [ARGS=…]   `python -m bench` lists the names
#   make wheel [PYTHONS="python3.11 python3.12"]

VENV := .venv
BIN := $(VENV)/bin
DEPS := $(VENV)/.stamp-dependencies
BUILD := $(VENV)/.stamp-package
PACKAGES := $(VENV)/.packages
CLIENTS := .venv-clients
AGENTS := .venv-agents
PEERS := .venv-peers
OLDEST := .venv-oldest
DOCS := .venv-docs
SOURCES := $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)

PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?=
ARGS ?=
MODEL_FLAG := $(if $(MODEL),--model "$(MODEL)")
# One more than a small machine has cores: tests wait, too.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Python keeps what it has compiled, whatever the shell says: each worker and each server that a test starts reads it.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install serve chat check test test-long test-page test-clients test-peers test-models test-vllm test-vllm-ray test-llama-cpp test-transformers test-aphrodite test-exllamav3 test-gguf test-sglang test-ray test-gpu test-oldest wheel bench lint format docs screenshots lock lock-agents lock-clients lock-docs clean help FORCE
.DEFAULT_GOAL := help

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

install: $(BUILD)

# The newest Python that will do; PYTHON=… names another. pip is the last thing that appears in a new environment.
$(BIN)/pip:
	@set -e; found=""; \
	for python in $(PYTHON) python3.13 python3.12 python3.11 python3 python; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "tailrace needs Python 3.11 or newer with its venv module; none was found (try PYTHON=/path/to/python)" >&2; exit 1; fi; \
	echo "creating $(VENV) with $$($$found --version)"; \
	rm -rf $(VENV); $$found -m venv $(VENV)

$(DEPS): requirements.lock | $(BIN)/pip
	$(PIP) install --quiet -r requirements.lock
	@touch $@

# The installation knows the packages by their paths: a module that has become a package is not found without a new one.
$(PACKAGES): FORCE | $(BIN)/pip
	@find src -name __init__.py | LC_ALL=C sort > $@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD): $(DEPS) $(PACKAGES) $(SOURCES) CMakeLists.txt pyproject.toml packages/conform/pyproject.toml
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "a C++ compiler is needed to build the CPU kernels (g++ or clang++)" >&2; exit 1; }
	@$(BIN)/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
	  { echo "Python.h is needed to build the CPU kernels (Debian and Ubuntu: the package python3-dev)" >&2; exit 1; }
	$(PIP) install --quiet --no-build-isolation --no-deps -e . -e packages/conform
	@touch $@

serve: install
	@$(BIN)/tailrace serve --host "$(HOST)" --port "$(PORT)" $(MODEL_FLAG) $(ARGS)

chat: install
	@$(BIN)/tailrace chat $(MODEL_FLAG) $(ARGS)

# ruff, pyright and the nearest tests of a few files (tools/check.py).
FILES ?= $(shell git diff --name-only --diff-filter=d HEAD)
check: install
	@$(BIN)/python tools/check.py $(FILES) $(ARGS)

# docs/testing.md has what is left to test-long, and why. The last line has the time of it all.
test: install
	@begun=$$(date +%s); $(BIN)/ruff check && $(BIN)/ruff format --check && $(PYTEST) -m "not long" $(ARGS); \
	status=$$?; echo "make test took $$(($$(date +%s) - begun)) s"; exit $$status

# What make test leaves out, and all examples of hypothesis. PART: the folders, separated by spaces.
# ARGS=--hypothesis-profile=search: other examples each time.
PART ?= tests packages/conform/tests
test-long: install
	@begun=$$(date +%s); $(PYTEST) -m "long or hypothesis" --hypothesis-profile=long $(PART) $(ARGS); \
	status=$$?; echo "make test-long took $$(($$(date +%s) - begun)) s"; exit $$status

# A package as a wheel in another environment: a name below build/, the environment's folder, the package's (tailrace's).
define install-wheel
@rm -rf build/$(1)
$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir build/$(1) $(or $(3),.)
$(2)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall build/$(1)/*.whl
endef

# The packages of an environment, as a file. The file is new if the list has changed; the environment is then made anew.
build/needs-%: FORCE
	@mkdir -p build; echo "$($*_NEEDS)" | cmp -s - $@ || echo "$($*_NEEDS)" > $@

# Environments of their own, whose packages would hold back ours: clients of others, and what builds the docs.
.venv-%/.stamp: requirements-%.lock | $(BIN)/pip
	@rm -rf .venv-$*; $(BIN)/python -m venv .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet -r requirements-$*.lock
	@touch $@

# The page in Chromium (Debian and Ubuntu: the package chromium; CHROMIUM names another). make test runs them too, where one is there.
test-page: install
	$(BIN)/python tests/page/axe.py
	$(BIN)/python -m pytest tests/page $(ARGS)

# Pictures of the page for docs/, from a server with the default model.
screenshots: install
	PYTHONPATH=tests $(BIN)/python -m page.screenshots $(ARGS)

# Clients of others against the server. Coding agents run with chat templates that packages carry, which are fetched once.
test-clients: install $(CLIENTS)/.stamp $(AGENTS)/.stamp $(PEERS)/.stamp
	$(PEERS)/bin/python tests/peers/fetch.py llama-cpp-python xinference
	$(CLIENTS)/bin/python -m pytest tests/clients $(ARGS)

# The peers' own code on the same inputs as ours, from packages that are fetched once: chat templates against
# transformers (writes docs/templates.md; about 20 minutes), tool calls against vLLM's and SGLang's parsers (docs/tools.md).
test-peers: install $(PEERS)/.stamp
	$(PEERS)/bin/python tests/peers/fetch.py
	PYTHONPATH=tests $(BIN)/python -m peers.templates $(ARGS)
	$(BIN)/python tests/peers/tool_calls.py

# tailrace as vLLM's sampler, beside the real package (docs/integrations/vllm.md). VLLM_VERSION: another release.
VLLM_NEWEST := 0.32.0
VLLM_VERSION ?= $(VLLM_NEWEST)
VLLM := .venv-vllm$(if $(filter-out $(VLLM_NEWEST),$(VLLM_VERSION)),-$(VLLM_VERSION))
$(VLLM:.venv-%=%)_NEEDS := $(VLLM_VERSION)
$(VLLM)/.stamp: tests/vllm_plugin/environment.py $(VLLM:.venv-%=build/needs-%) | $(BIN)/pip
	@rm -rf $(VLLM); $(BIN)/python -m venv $(VLLM)
	$(BIN)/python tests/vllm_plugin/environment.py $(VLLM) $(VLLM_VERSION)
	@touch $@

test-vllm: install $(VLLM)/.stamp
	$(call install-wheel,vllm,$(VLLM))
	cd tests/vllm_plugin && ../../$(VLLM)/bin/python -m pytest -W ignore $(ARGS)
	$(VLLM)/bin/python tests/vllm_plugin/vllms_own.py

# The same as a replica of Ray Serve's LLM deployment, in an environment of its own (docs/integrations/ray.md). Ray's
# extra `llm` pins another vLLM, and libraries of GPUs.
VLLM_RAY := .venv-ray-vllm
vllm-ray_NEEDS := $(VLLM_NEWEST) 'ray[serve]==2.60.0' jsonref jsonschema typer fsspec pandas pyarrow
$(VLLM_RAY)/.stamp: tests/vllm_plugin/environment.py build/needs-vllm-ray | $(BIN)/pip
	@rm -rf $(VLLM_RAY); $(BIN)/python -m venv $(VLLM_RAY)
	$(BIN)/python tests/vllm_plugin/environment.py $(VLLM_RAY) $(VLLM_NEWEST)
	$(VLLM_RAY)/bin/python -m pip --disable-pip-version-check install --quiet $(wordlist 2,99,$(vllm-ray_NEEDS))
	@touch $@

test-vllm-ray: install $(VLLM_RAY)/.stamp
	$(call install-wheel,vllm-ray,$(VLLM_RAY))
	cd tests/vllm_ray && ../../$(VLLM_RAY)/bin/python -m pytest -W ignore $(ARGS)

# tailrace in llama-cpp-python, which is built here (minutes), on the default model's file (docs/integrations/llama-cpp.md). Then what both
# make of tiny files: texts for each pre-tokenizer, quantized weights, and each field (docs/gguf.md).
# Its tiles (AMX) crash as GCC 12 compiles them, so they are left out; bench gguf wants them (docs/quantized.md).
LLAMA_CPP := .venv-llama-cpp
GGUF_SOURCE := build/llama-cpp-source
GGUF_JUDGE = PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m gguf_judge
GGUF_PEER = $(GGUF_SOURCE)/vendor/llama.cpp $(LLAMA_CPP)/bin/python
LLAMA_CPP_BUILD := $(shell grep -qsw amx_int8 /proc/cpuinfo && echo CMAKE_ARGS=-DGGML_NATIVE=OFF)
llama-cpp_NEEDS := llama-cpp-python==0.3.36 torch==2.13.0 msgspec pytest
$(LLAMA_CPP)/.stamp: build/needs-llama-cpp | $(BIN)/pip
	@rm -rf $(LLAMA_CPP); $(BIN)/python -m venv $(LLAMA_CPP)
	$(LLAMA_CPP_BUILD) $(LLAMA_CPP)/bin/python -m pip --disable-pip-version-check install --quiet $(llama-cpp_NEEDS)
	@touch $@

test-llama-cpp: install $(LLAMA_CPP)/.stamp $(GGUF_SOURCE)/.stamp
	$(call install-wheel,llama-cpp,$(LLAMA_CPP))
	export TAILRACE_GGUF="$$($(BIN)/python -c "from pathlib import Path; from tailrace.config import ModelConfig; from tailrace.models.default import fetch_default; from tailrace.models.progress import Progress; print(fetch_default(Path(ModelConfig().cache_dir), Progress(False)))")"; \
	cd tests/llama_cpp_plugin && ../../$(LLAMA_CPP)/bin/python -m pytest -W ignore $(ARGS)
	$(GGUF_JUDGE).texts $(LLAMA_CPP)/bin/python
	$(GGUF_JUDGE).published $(GGUF_PEER)
	$(GGUF_JUDGE).fields $(GGUF_PEER)

# tailrace in transformers' generate and continuous batching (docs/integrations/transformers.md), in the environment of all tests.
test-transformers: install
	$(BIN)/python -m pytest tests/integrations/test_transformers.py tests/integrations/test_transformers_refusals.py tests/integrations/test_batching.py tests/integrations/test_fields.py \
	  tests/integrations/test_streamer.py tests/integrations/test_pages.py $(ARGS)

# tailrace in Aphrodite and exllamav3: their Python files, which run on a CPU without their kernels.
APHRODITE_FILES := build/aphrodite
EXLLAMAV3_FILES := build/exllamav3
$(APHRODITE_FILES)/.stamp $(EXLLAMAV3_FILES)/.stamp: build/%/.stamp: build/needs-% | $(BIN)/pip
	@rm -rf build/$*; mkdir -p build/$*
	$(PIP) download --quiet --no-deps --only-binary :all: --dest build/$* $($*_NEEDS)
	cd build/$* && ../../$(BIN)/python -c "import glob, zipfile; [zipfile.ZipFile(name).extractall() for name in glob.glob('*.whl')]" && rm *.whl
	@touch $@

aphrodite_NEEDS := aphrodite-engine==0.24.1
exllamav3_NEEDS := exllamav3==1.6.5

test-aphrodite: install $(VLLM)/.stamp $(APHRODITE_FILES)/.stamp
	$(call install-wheel,vllm,$(VLLM))
	cd tests/aphrodite_plugin && PYTHONPATH=../../$(APHRODITE_FILES) ../../$(VLLM)/bin/python -m pytest -W ignore $(ARGS)

test-exllamav3: install $(EXLLAMAV3_FILES)/.stamp
	cd tests/exllamav3_plugin && PYTHONPATH=../../$(EXLLAMAV3_FILES) ../../$(BIN)/python -m pytest -W ignore $(ARGS)

# GGUF files of tiny models as llama.cpp's own converter writes them, against transformers and llama.cpp; writes docs/gguf.md. The converter
# comes with llama-cpp-python's source. ARGS="'llama llama3' gpt-oss" judges these.
$(GGUF_SOURCE)/.stamp: $(LLAMA_CPP)/.stamp
	@rm -rf $(GGUF_SOURCE); mkdir -p $(GGUF_SOURCE)
	$(LLAMA_CPP)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary :all: --dest $(GGUF_SOURCE) $(filter llama-cpp-python==%,$(llama-cpp_NEEDS))
	tar -xzf $(GGUF_SOURCE)/*.tar.gz -C $(GGUF_SOURCE) --strip-components 1
	$(LLAMA_CPP)/bin/python -m pip --disable-pip-version-check install --quiet $$(grep '^transformers==' requirements.lock) sentencepiece protobuf pyyaml
	@touch $@

test-gguf: install $(GGUF_SOURCE)/.stamp
	PYTHONPATH=tests $(BIN)/python -m gguf_judge $(GGUF_PEER) $(ARGS)

# tailrace as SGLang's sampling backend: SGLang's own classes and whole servers on a CPU (docs/integrations/sglang.md).
SGLANG := .venv-sglang
SGLANG_ITSELF := sglang==0.5.23
sglang_NEEDS := $(SGLANG_ITSELF) orjson requests gguf openai pybase64 pillow ipython aiohttp apache-tvm-ffi dill sentencepiece compressed-tensors loguru \
  partial-json-parser openai-harmony interegular fastapi python-multipart setproctitle einops xgrammar jsonschema psutil pyzmq uvicorn uvloop msgspec pytest \
  torch==2.13.0 transformers==5.19.0 triton==3.9.0
$(SGLANG)/.stamp: build/needs-sglang | $(BIN)/pip
	@rm -rf $(SGLANG); $(BIN)/python -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip --disable-pip-version-check install --quiet $(filter-out $(SGLANG_ITSELF),$(sglang_NEEDS))
	$(SGLANG)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(SGLANG_ITSELF)
	@touch $@

test-sglang: install $(SGLANG)/.stamp
	$(call install-wheel,sglang,$(SGLANG))
	cd tests/sglang_plugin && ../../$(SGLANG)/bin/python -m pytest -W ignore $(ARGS)

# tailrace as a Ray Serve application: two replicas on this machine (docs/integrations/ray.md).
RAY := .venv-ray
ray_NEEDS := 'ray[serve]==2.60.0'
$(RAY)/.stamp: requirements.lock build/needs-ray | $(BIN)/pip
	@rm -rf $(RAY); $(BIN)/python -m venv $(RAY)
	$(RAY)/bin/python -m pip --disable-pip-version-check install --quiet -r requirements.lock $(ray_NEEDS)
	@touch $@

test-ray: install $(RAY)/.stamp
	$(call install-wheel,ray,$(RAY))
	cd tests/ray_app && ../../$(RAY)/bin/python -m pytest -W ignore $(ARGS)

# A tiny model of every causal architecture in the installed transformers, against transformers; writes docs/models.md. Cut short it goes on
# with ARGS=--missing; ARGS="llama mistral" judges these, ARGS="--part 1/4" a quarter.
test-models: install
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m architectures $(ARGS)

# What touches the GPU, on one; then, where compute-sanitizer is, the kernels once more under its eyes.
SANITIZED = compute-sanitizer --error-exitcode 1 --tool $(1) $(BIN)/python -m pytest -m "not long" tests/kernels tests/sampling/test_on_gpu.py -k "not machine_code and not without_barriers"
test-gpu: install
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "test-gpu needs a GPU: torch sees no CUDA here")'
	$(BIN)/python -m pytest -m "not long" tests/kernels tests/runners tests/engine/test_on_gpu.py tests/engine/test_states_on_gpu.py $(ARGS)
	$(BIN)/python -m pytest -m "not long" tests/sampling -k "gpu or kernel_says" $(ARGS)
	@if command -v compute-sanitizer >/dev/null; then set -ex; \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(call SANITIZED,memcheck); $(call SANITIZED,racecheck); \
	else echo "compute-sanitizer is not on PATH: memcheck and racecheck are left out"; fi

# Wheels for other machines in dist/, of each interpreter in PYTHONS that is there: one for 3.11, and one for 3.12 and all that come after
# (nanobind needs 3.12's stable ABI). Their manylinux tags are as the compiler and the C library of this machine are. The wheel of
# packages/conform is pure Python: one for all.
PYTHONS ?= $(BIN)/python python3.12
PACKAGE := $(shell find src/tailrace -name '*.py' -o -name '*.pyi' -o -path 'src/tailrace/page/*' -type f)
CONFORM := packages/conform/pyproject.toml packages/conform/README.md $(shell find packages/conform/src -name '*.py')
wheel: dist/.stamp
dist/.stamp: $(PACKAGE) $(CONFORM) $(SOURCES) CMakeLists.txt pyproject.toml README.md | $(DEPS)
	@rm -rf build/wheel dist; mkdir -p dist
	@set -e; for python in $(PYTHONS); do \
	  if ! $$python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null; \
	  then echo "$$python is not there, or has no headers: left out"; continue; fi; \
	  echo "building with $$($$python --version)"; \
	  if [ "$$python" = "$(BIN)/python" ]; then isolation=--no-build-isolation; else isolation=; fi; \
	  $$python -m pip --disable-pip-version-check wheel --quiet --no-deps $$isolation --wheel-dir build/wheel .; \
	done
	@if [ "$$(uname)" = Linux ]; then PATH="$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else cp build/wheel/*.whl dist; fi
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./packages/conform
	@touch $@

# The oldest versions that pyproject.toml allows, and the tests of what stands on them; the package as a wheel. torch is the one of the lock.
# Warnings of old packages are theirs. tests/models/test_gguf.py needs a transformers that knows GGUF.
OLDEST_TESTS ?= tests/sampling/test_cases.py tests/sampling/test_sampler.py tests/sampling/test_verify.py tests/sampling/test_on_gpu.py \
  tests/text tests/wire tests/grammar tests/runners tests/drafting tests/engine/test_engine.py tests/parity tests/api tests/e2e tests/cli \
  tests/test_config.py tests/test_extras.py tests/test_library.py
$(OLDEST)/.stamp: pyproject.toml packages/conform/pyproject.toml requirements.lock tests/wanted.py | $(BIN)/pip
	@set -e; rm -rf $(OLDEST); $(BIN)/python -m venv $(OLDEST); \
	$(BIN)/python tests/wanted.py oldest > $(OLDEST)/wanted; \
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet -r $(OLDEST)/wanted
	@touch $@

test-oldest: install $(OLDEST)/.stamp
	$(BIN)/python -c 'from tailrace.config import ModelConfig; from tailrace.models import resolve; resolve(ModelConfig())'
	$(call install-wheel,oldest,$(OLDEST))
	$(call install-wheel,oldest-conform,$(OLDEST),./packages/conform)
	$(OLDEST)/bin/python -m pytest -m "not long" -o cache_dir=$(OLDEST)/pytest -o filterwarnings=default $(OLDEST_TESTS) $(ARGS)

BENCH ?= serve sampler
bench: install
	@mkdir -p bench/results
	@set -e; for name in $(BENCH); do $(BIN)/python -m bench.$$name --json bench/results/$$name.json $(ARGS); done

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The site of docs/, into build/site. It reads the docstrings from the source; a link or an anchor that leads nowhere is an error.
docs: $(DOCS)/.stamp
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build
	@echo "build/site/index.html"

# Renew the versions: everything the pyproject.toml files ask for, newest, in an environment of its own.
lock: $(BIN)/pip
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(BIN)/python -m venv "$$work/venv"; \
	$(BIN)/python tests/wanted.py newest > "$$work/wanted"; \
	grep '^torch==' requirements.lock > "$$work/kept"; \
	"$$work/venv/bin/python" -m pip install --quiet -r "$$work/wanted" -c "$$work/kept"; \
	{ head -1 requirements.lock; "$$work/venv/bin/python" -m pip freeze | sed -E 's/^(torch==[^+]+).*/\1/; s/^(uvloop==.*)/\1; platform_system != "Windows"/; /^nvidia/d; s/^triton==.*/triton>=3.7.1; platform_system == "Linux"/' | sort -f; } > "$$work/lock"; \
	cp "$$work/lock" requirements.lock; echo "requirements.lock renewed; run make test"

lock-agents lock-clients lock-docs lock-peers: lock-%: $(BIN)/pip
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(BIN)/python -m venv "$$work/venv"; \
	"$$work/venv/bin/python" -m pip install --quiet -r requirements-$*.txt; \
	{ head -1 requirements-$*.lock; "$$work/venv/bin/python" -m pip freeze | sort -f; } > "$$work/lock"; \
	cp "$$work/lock" requirements-$*.lock; echo "requirements-$*.lock renewed; run make $(or $(if $(filter docs,$*),docs),$(if $(filter agents,$*),test-clients),test-$*)"

clean:
	rm -rf $(VENV) $(CLIENTS) $(AGENTS) $(PEERS) .venv-vllm* $(VLLM_RAY) $(LLAMA_CPP) $(SGLANG) $(RAY) $(OLDEST) $(DOCS) build dist
