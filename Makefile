# `make run` and `make test` set up what they need on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
# The tests with real builders that run beside the others: about half of their time. Each group has a store of its own.
GROUP := tests/benchmarks tests/checkpoints tests/reports tests/runner/worker tests/test_documents.py
ARGS ?= builder=0.14.1,0.18.0 patch=none,rope_fix

.PHONY: setup run test lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

# The main job ends well when every cell has a row, a failed export's included.
run: setup
	$(BIN)/python -m runner -m $(ARGS) allow_failed=true

test: setup lint
	@echo "== fast tests"
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile
	@echo "== tests with real builders, in two groups side by side"
	@mkdir -p .paritylab
	@$(BIN)/python -m pytest -m slow --durations=15 $(GROUP) >.paritylab/second-group.log 2>&1 & second=$$!; \
	$(BIN)/python -m pytest -m slow --durations=15 $(addprefix --ignore=,$(GROUP)); first=$$?; \
	wait $$second; second=$$?; \
	echo "== the second group: $(GROUP)"; cat .paritylab/second-group.log; \
	test $$first -eq 0 && test $$second -eq 0

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: setup
	$(BIN)/python -m benchmarks.compare
	$(BIN)/python -m benchmarks.marginal
	$(BIN)/python -m benchmarks.million --db .paritylab/million.db

clean:
	rm -rf .paritylab .venv
