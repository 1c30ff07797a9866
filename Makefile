# make demo and make test do everything on a fresh machine; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.unskew-ready

.PHONY: setup demo test test-all lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(STAMP)

demo: setup
	$(BIN)/unskew compare --methods "fedavg,flfa,fedsol,fedetf,fedblade(var_eps=0.01),fedper,fedas" --seeds 3 \
		--data digits --split dirichlet:0.1 --clients 10 --sample 0.5 --rounds 12 --epochs 3 --lr 0.01 --momentum 0.9 \
		--executor pool --memory-format contiguous --out demo

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	$(BIN)/python -m pytest -n 2

test-all: lint
	$(BIN)/python -m pytest -n 2 -m ""

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
