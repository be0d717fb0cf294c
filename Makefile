# Every target sets up what it needs; you need only Python 3.11+ with venv and pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEV    := $(VENV)/.ready-dev
DEMO   := $(VENV)/.ready-demo
TRAIN  := $(VENV)/.ready-train
# Options for pip that say where torch comes from. The usual build for Linux brings gigabytes for GPUs; without a GPU,
# name the index of PyTorch's CPU builds here: make train TORCH="--extra-index-url <address>".
TORCH  ?=
# Everything but what needs newer libraries than the lowest (extras, a browser, the embedded model).
LOWEST_TESTS := tests responses_api_agents resources_servers responses_api_models/vllm_model \
  responses_api_models/replay_model $(addprefix --ignore=tests/,view conversion/test_anthropic.py conversion/test_coverage_of_clients.py \
  audit programs servers/models/test_clients.py test_demo.py test_dependencies.py test_documentation.py test_earlier_runs.py io/test_files.py rollouts/test_crash.py)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Installs $(PACKAGES) into the environment; pip is quiet, so say what takes so long.
define set_up
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV), which takes a few minutes the first time"
	@$(PIP) $(PACKAGES)
	@touch $@
endef

.PHONY: help demo train test clients check format ray-chaos worlds lowest engines bench bench-all agents mutants soak soak-kills task-folders clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(DEV): PACKAGES := -e '.[dev,local]'
$(DEV): pyproject.toml
	$(set_up)

$(DEMO): PACKAGES := -e '.[local]'
$(DEMO): pyproject.toml
	$(set_up)

demo: $(DEMO) ## collect rollouts of a real small model in a minute, no key needed
	@$(BIN)/python scripts/demo.py

$(TRAIN): PACKAGES := $(TORCH) -e '.[train]'
$(TRAIN): pyproject.toml
	$(set_up)

train: $(TRAIN) ## train a real small model on its own rollouts and see the reward rise (ARGS="--seed 1"; 15 minutes)
	@$(BIN)/python examples/train.py $(ARGS)

# One worker more than the two cores of a usual CI machine: a quarter of their time, tests wait for retries and time limits.
test: $(DEV) ## run the tests
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

clients: $(DEV) ## run model servers with the clients of Google, LangChain, pydantic-ai and openai-agents
	$(PIP) -e '.[clients]'
	$(BIN)/python -m pytest -q tests/servers/models/test_clients.py

format: $(DEV) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(DEV) ## format check, lint, types, tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

ray-chaos: $(DEV) ## repeatedly kill actors, nodes and connections of a collection on Ray (minutes)
	$(BIN)/python -m pytest -q -s -n 0 -o pythonpath=tests/executors tests/executors/chaos_ray.py

worlds: $(DEV) ## try to break out of worlds with bombs and in real Podman containers (minutes; as root, or set up for Podman)
	$(BIN)/python -m pytest -q -n 0 -rs -o pythonpath=tests/sandbox tests/sandbox/real_worlds.py

lowest: ## run the tests on the lowest supported versions of the dependencies
	@test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	@test .venv-lowest/.ready -nt requirements-lowest.txt || { \
	  .venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c requirements-lowest.txt -e '.[test,local]' && \
	  touch .venv-lowest/.ready; }
	.venv-lowest/bin/python -m pytest -q -n 2 --dist worksteal $(LOWEST_TESTS)

engines: $(DEV) ## run real engines (llama.cpp, vLLM, transformers) through our model servers and write docs/engines.md (20 minutes)
	$(BIN)/python scripts/engine_matrix.py $(if $(TORCH),--pip "$(TORCH)") $(ARGS)

bench: $(DEV) ## measure the cost of a rollout compared with a bare HTTP client
	$(BIN)/python benchmarks_perf/bench.py
	$(BIN)/python benchmarks_perf/bench_models.py
	$(BIN)/python benchmarks_perf/bench_long.py
	$(BIN)/python benchmarks_perf/bench_long.py --memory
	$(BIN)/python benchmarks_perf/bench_metrics.py

bench-all: bench ## these and all other measurements: scale, concurrency, viewer, export, embedded model (half an hour)
	$(BIN)/python benchmarks_perf/bench_scale.py
	$(BIN)/python benchmarks_perf/bench_concurrency.py
	$(BIN)/python benchmarks_perf/bench_viewer.py
	$(BIN)/python benchmarks_perf/bench_export.py
	$(BIN)/python benchmarks_perf/bench_sandbox.py
	$(BIN)/python benchmarks_perf/bench_mcp.py
	$(BIN)/python benchmarks_perf/bench_local_model.py

agents: $(DEV) ## run Codex, Claude Code and nine other programs as agents, with faults (PROGRAMS=codex,aider; installs 2 GB, an hour)
	$(BIN)/python -m pytest -q -s -n 0 --timeout 180 tests/programs/real_programs.py
	PYTHONPATH=. $(BIN)/python tests/programs/kill_programs.py

mutants: $(DEV) ## change the code on purpose and see whether the tests notice (ARGS="--seed 2"; half an hour)
	$(BIN)/python scripts/mutants.py $(ARGS)

soak: $(DEV) ## run 100,000 rollouts through faults, kills, outages and Ctrl-C; none may be lost or repeated (half an hour)
	$(BIN)/python benchmarks_perf/soak.py

task-folders: $(DEV) ## run the examples of task_folder in containers of Podman or Docker (minutes; needs busybox-static)
	@ROLLOUT_GYM_TEST_CONTAINERS=1 $(BIN)/python -m pytest -q -n 0 resources_servers/task_folder/tests/test_containers.py

soak-kills: $(DEV) ## kill servers at random 50 times over 10,000 rollouts; all of them must complete once (minutes)
	$(BIN)/python benchmarks_perf/soak_kills.py

clean: ## remove everything the targets made
	rm -rf $(VENV) .venv-lowest .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
