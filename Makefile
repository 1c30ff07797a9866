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
	$(BIN)/unskew compare --methods "fedavg,fedprox(mu=1.0),scaffold" --seeds 3 \
		--data digits --split dirichlet:0.1 --clients 20 --sample 0.5 --rounds 40 --epochs 2 --lr 0.05 \
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
