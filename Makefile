# Needs only python3 (3.11 or newer) with venv. Everything else is installed into .venv, and for some tests into .venv-<group>.

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.installed
PIP := -m pip install -qq --disable-pip-version-check --constraint constraints.txt
STOKER := --editable 'packages/stoker[test]' --editable packages/stoker-recipes
PYTEST := OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q
BENCHES := bench_*

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-docs lint test-slow test-gpu test-originals test-scale test-adapters explore soak bench reference tutorials clean

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-23s %s\n", $$1, $$2 }'

setup: $(STAMP) ## create .venv and install everything into it
# An environment. Without the stamp an earlier install was interrupted, and pip cannot repair half-installed packages: start again.
%/.installed: packages/stoker/pyproject.toml packages/stoker-recipes/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "stoker needs Python 3.11 or newer with venv, but \
	  '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not found). Try make PYTHON=python3.11, or install python3-venv (Debian, Ubuntu)."; exit 1; }
	@echo "Installing into $* (a minute or two, only once) ..."
	@[ -x $*/bin/pip ] && [ -e $@ ] || $(PYTHON) -m venv --clear $*
	@$*/bin/python $(PIP) $(STOKER)
	@[ $* = .venv ] || { $*/bin/python $(PIP) 'pip>=25.1' && $*/bin/python $(PIP) $(NODEPS) --group $(*:.venv-%=%); }
	@[ $* != .venv-scale ] || npm install --silent --no-audit --no-fund --prefix $* azurite@3.35.0 2>/dev/null || echo "npm did not install azurite: the tests of Azure are skipped."
	@touch $@

# Some libraries ask for older versions of ours, and for packages that no test imports.
.venv-originals/.installed .venv-adapters/.installed: NODEPS := --no-deps
.venv-originals/.installed .venv-adapters/.installed .venv-scale/.installed: pyproject.toml
demo: $(STAMP) ## two minutes: a slow script, its bottleneck, the fix, equal losses, a kill and an exact resume
	@$(PY) examples/demo.py

# Lint takes one core for a while. Three workers keep two cores busy, as tests also wait for disks and other processes; a file goes to
# one of them, as its fixtures would be made in each. Threads of torch that spin while they wait would take the cores from the others.
test: $(STAMP) ## lint and the quick tests, side by side
	@nice $(MAKE) --no-print-directory lint & lint=$$!; PYTHONHASHSEED=0 $(PYTEST) -n 3 --dist loadfile; tests=$$?; \
	  wait $$lint || { echo "Lint failed: see above, or run make lint."; exit 1; }; exit $$tests

lint: $(STAMP) ## ruff, mypy, and a report on the structure
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check . || { echo "Run: $(PY) -m ruff format ."; exit 1; }
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m tools.structure

docs: $(STAMP) ## build the documentation site: build/site/index.html
	@$(PY) -c 'import mkdocstrings, zensical' 2>/dev/null || $(PY) $(PIP) --editable 'packages/stoker[docs]'
	@$(PY) -m tools.site $(if $(RECORD),--record)

test-slow: TESTS := -n 2 --dist loadfile -m slow ## the slow tests (minutes)
test-docs: TESTS := -n 2 -m 'slow or not slow' tests/test_docs.py tests/test_site.py tests/test_language.py $(wildcard tests/*/test_*_manual.py) ## every block of code
explore: TESTS := -n 2 --dist loadfile --explore ## the quick tests with new random seeds and all examples
soak: TESTS := -m soak ## the long tests, before a release
test-slow test-docs explore soak: $(STAMP)
	@$(PYTEST) $(TESTS)

test-gpu: $(STAMP) ## every test that needs a GPU, on a machine that has one
	@$(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "torch sees no GPU here; run this on a machine with an NVIDIA GPU."; exit 1; }
	@$(PY) -m pytest -q -m gpu

# Environments of their own. The imports come first: without a library, its tests would be skipped. Pages are run with the libraries, too.
test-originals: NEEDS := mostlyai.engine, mostlyai.qa, talib ## encoders against mostlyai-engine and TA-Lib, and quality with mostlyai-qa
test-originals: TESTS := -m originals tests/recipes
test-originals: PAGE := docs/recipes/tabular.md docs/recipes/tabular_quality.md
test-adapters: NEEDS := gluonts, neuralforecast, pytorch_forecasting, skorch ## adapters against the libraries they are for
test-adapters: TESTS := -m 'slow or not slow' tests/integrations
test-scale: NEEDS := moto, obstore, ray.train ## object storage, packs and training runs on several nodes, with real servers, agents and kills
test-scale: TESTS := -m scale
test-scale: PAGE := docs/scale.md
test-originals test-adapters test-scale: test-%: .venv-%/.installed
	@.venv-$*/bin/python -W ignore -c 'import $(NEEDS)'
	@PYTHONHASHSEED=0 .venv-$*/bin/python -m pytest -q $(TESTS)
	@[ -z '$(PAGE)' ] || PYTHONPATH=. .venv-$*/bin/python -m tools.pages $(PAGE)

bench: $(STAMP) ## every benchmark, small; FULL=1 for the full size, BENCHES="bench_a bench_b" for some
	@for name in $(subst /,.,$(basename $(foreach name,$(BENCHES),$(wildcard benchmarks/*/$(name).py)))); do \
	  echo "== $$name"; $(PY) -m $$name $(if $(FULL),,--small) || exit 1; done

reference: $(STAMP) ## write the generated pages: configuration, commands, errors, promises, benchmarks
	@for page in tools.config_page tools.cli_page tools.error_page tools.promises benchmarks.page tools.adapters_page; do $(PY) -m $$page || exit 1; done

tutorials: $(STAMP) ## run the tutorials, and write their outputs and notebooks
	@$(PY) -m tools.notebooks

clean: ## remove the environments and caches
	@rm -rf .venv .venv-* build .hypothesis .mypy_cache .pytest_cache .ruff_cache packages/*/src/*.egg-info
	@find packages tests benchmarks verdicts examples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
