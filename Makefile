# Needs only python3 (3.11 or newer) with venv; everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ORIGINALS := .venv-originals
SCALE := .venv-scale
ADAPTERS := .venv-adapters
BENCHES := bench_*

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-docs lint test-slow test-gpu test-originals test-scale test-adapters explore soak bench benchmarks-page reference tutorials images clean

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-23s %s\n", $$1, $$2 }'

setup: $(STAMP) ## create .venv and install everything into it
	@echo "$(VENV) is ready."

$(STAMP): packages/stoker/pyproject.toml packages/stoker-recipes/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "stoker needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not found). Try make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' has no venv module. Install it (on Debian and Ubuntu: the package python3-venv) and run make again."; exit 1; }
	@echo "Installing into $(VENV) (a minute or two, only once) ..."
	@# Without the stamp an earlier install was interrupted, and pip cannot repair half-installed packages: start again.
	@[ -x $(VENV)/bin/pip ] && [ -e $@ ] || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable 'packages/stoker[test]' --editable packages/stoker-recipes
	@touch $@

demo: $(STAMP) ## two minutes: a slow script, its bottleneck, the fix, equal losses, a kill and an exact resume
	@$(PY) examples/demo.py

# Lint waits for one core of mypy, so it runs beside the tests. A file goes to one worker, as its fixtures would be made in both.
# Threads of torch that spin while they wait would take the cores from the other worker.
test: $(STAMP) ## lint and the quick tests, side by side
	@nice $(MAKE) --no-print-directory lint & lint=$$!; \
	  PYTHONHASHSEED=0 OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q -n 2 --dist loadfile; tests=$$?; \
	  wait $$lint || { echo "Lint failed: see above, or run make lint."; exit 1; }; exit $$tests

docs: $(VENV)/.docs-installed ## build the documentation site: build/site/index.html
	@$(PY) -m tools.site $(if $(RECORD),--record)

$(VENV)/.docs-installed: $(STAMP)
	@echo "Installing what builds the documentation (seconds, only once) ..."
	@$(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable 'packages/stoker[test,docs]' --editable packages/stoker-recipes
	@touch $@

test-docs: $(STAMP) ## the tests of the documentation, with every block of code (some 15 minutes)
	@PYTHONHASHSEED=0 $(PY) -m pytest -q -n 2 -m 'slow or not slow' tests/test_docs.py tests/test_site.py tests/test_language.py \
	  tests/diagnose/test_finding_manual.py tests/train/test_trainer_manual.py tests/split/test_split_manual.py

lint: $(STAMP) ## ruff, mypy, and a report on the structure
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check . || { echo "Run: $(PY) -m ruff format ."; exit 1; }
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m tools.structure
	@echo "Lint is clean."

test-slow: $(STAMP) ## the slow tests (minutes)
	@OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q -n 2 --dist loadfile -m slow

test-gpu: $(STAMP) ## every test that needs a GPU, on a machine that has one
	@$(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "torch sees no GPU here; run this on a machine with an NVIDIA GPU."; exit 1; }
	@$(PY) -m pytest -q -m gpu

explore: $(STAMP) ## the quick tests with new random seeds and all examples
	@OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q -n 2 --dist loadfile --explore

test-originals: $(ORIGINALS)/.installed ## encoders against mostlyai-engine and TA-Lib, and quality with mostlyai-qa
	@$(ORIGINALS)/bin/python -W ignore -c 'import mostlyai.engine, mostlyai.qa, talib' # else their tests would be skipped
	@$(ORIGINALS)/bin/python -m pytest -q -m originals tests/recipes
	@PYTHONPATH=. $(ORIGINALS)/bin/python -m tools.pages docs/recipes/tabular_quality.md

$(ORIGINALS)/.installed: packages/stoker/pyproject.toml packages/stoker-recipes/pyproject.toml constraints.txt requirements-originals.txt
	@echo "Installing into $(ORIGINALS) (some minutes, only once) ..."
	@[ -x $(ORIGINALS)/bin/pip ] && [ -e $@ ] || $(PYTHON) -m venv --clear $(ORIGINALS)
	@$(ORIGINALS)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable 'packages/stoker[test]' --editable packages/stoker-recipes
	@$(ORIGINALS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --requirement requirements-originals.txt
	@touch $@

test-scale: $(SCALE)/.installed ## object storage, packs and training runs on several nodes, with real servers, agents and kills
	@$(SCALE)/bin/python -c 'import moto, obstore, ray.train' # else their tests would be skipped
	@PYTHONHASHSEED=0 $(SCALE)/bin/python -m pytest -q -m 'slow or not slow' tests/store/test_remote_servers.py tests/train/test_mirror_servers.py \
	  tests/store/test_remote.py tests/store/test_object_storage.py tests/store/test_block_cache.py tests/feed/test_remote_blocks.py \
	  tests/store/formats/test_remote_files.py tests/store/formats/test_discover_ray_dataset.py tests/store/pack/test_on_ray.py tests/recipes/tabular/test_files.py \
	  tests/test_ray.py tests/cli/test_train_elastic.py tests/train/test_ordered_sums.py tests/train/test_mirror.py
	@PYTHONPATH=. $(SCALE)/bin/python -m tools.pages docs/scale.md

$(SCALE)/.installed: packages/stoker/pyproject.toml packages/stoker-recipes/pyproject.toml constraints.txt requirements-scale.txt
	@echo "Installing into $(SCALE) (some minutes, only once) ..."
	@[ -x $(SCALE)/bin/pip ] && [ -e $@ ] || $(PYTHON) -m venv --clear $(SCALE)
	@$(SCALE)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable 'packages/stoker[test,remote]' --editable packages/stoker-recipes
	@$(SCALE)/bin/python -m pip install -qq --disable-pip-version-check --requirement requirements-scale.txt
	@npm install --silent --no-audit --no-fund --prefix $(SCALE) azurite@3.35.0 2>/dev/null || echo "npm did not install azurite: the tests of Azure are skipped."
	@touch $@

test-adapters: $(ADAPTERS)/.installed ## adapters against Lightning, Hugging Face, pytorch-forecasting, NeuralForecast, GluonTS and skorch
	@$(ADAPTERS)/bin/python -W ignore -c 'import gluonts, neuralforecast, pytorch_forecasting, skorch' # else their tests would be skipped
	@PYTHONHASHSEED=0 $(ADAPTERS)/bin/python -m pytest -q -m 'slow or not slow' tests/integrations

$(ADAPTERS)/.installed: packages/stoker/pyproject.toml packages/stoker-recipes/pyproject.toml constraints.txt requirements-adapters.txt
	@echo "Installing into $(ADAPTERS) (some minutes, only once) ..."
	@[ -x $(ADAPTERS)/bin/pip ] && [ -e $@ ] || $(PYTHON) -m venv --clear $(ADAPTERS)
	@$(ADAPTERS)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable 'packages/stoker[test]' --editable packages/stoker-recipes
	@$(ADAPTERS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --requirement requirements-adapters.txt
	@touch $@

soak: $(STAMP) ## the long tests, before a release
	@$(PY) -m pytest -q -m soak

bench: $(STAMP) ## every benchmark, small; FULL=1 for the full size, BENCHES="bench_a bench_b" for some
	@for name in $(subst /,.,$(basename $(foreach name,$(BENCHES),$(wildcard benchmarks/*/$(name).py)))); do \
	  echo "== $$name"; $(PY) -m $$name $(if $(FULL),,--small) || exit 1; \
	done

benchmarks-page: $(STAMP) ## write docs/benchmarks.md and the numbers of the README from benchmarks/results
	@$(PY) -m benchmarks.page
	@$(PY) -m tools.adapters_page

reference: $(STAMP) ## write docs/configuration.md, cli.md, errors.md and promises.md
	@$(PY) -m tools.config_page
	@$(PY) -m tools.cli_page
	@$(PY) -m tools.error_page
	@$(PY) -m tools.promises

tutorials: $(STAMP) ## run the tutorials, and write their outputs and notebooks
	@$(PY) -m tools.notebooks

images: $(STAMP) ## draw the figures of the documentation; on an idle machine, as one is a real diagnosis
	@$(PY) docs/images/draw.py
	@$(PY) tools/record_diagnosis.py

clean: ## remove .venv and caches
	@rm -rf $(VENV) $(ORIGINALS) $(SCALE) $(ADAPTERS) build .hypothesis .mypy_cache .pytest_cache .ruff_cache packages/*/src/*.egg-info
	@find packages tests benchmarks verdicts examples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
