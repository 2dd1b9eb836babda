import os

os.environ.setdefault('HF_HUB_OFFLINE', '1')  # no test may ask a hub
os.environ.setdefault('GOMP_SPINCOUNT', '1000')  # see the Makefile

import copy  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

from ding_common import import_ding  # noqa: E402

import_ding()

import ding_grpo  # noqa: E402, F401  mends DI-engine before a test imports its entries

TINY = dict(
    model_type='llama',
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)


@pytest.fixture
def tiny_config() -> dict:
    return dict(TINY)


@pytest.fixture
def tiny_model():
    """A random causal language model of 2 layers and 32 tokens, the same in each test."""
    from ding_grpo.model import CausalLM
    torch.manual_seed(0)
    return CausalLM(config=dict(TINY))


@pytest.fixture
def think_answer(tmp_path, monkeypatch):
    """The shipped config, made small, in a folder of its own: (main_config, create_config)."""
    import runpy
    monkeypatch.chdir(tmp_path)
    path = os.path.join(os.path.dirname(__file__), '..', 'config', 'think_answer_grpo_config.py')
    loaded = runpy.run_path(path)
    main, create = copy.deepcopy(loaded['main_config']), copy.deepcopy(loaded['create_config'])
    main.exp_name = 'run'
    main.env.collector_env_num = 8
    main.policy.group_size = 4
    main.policy.model.config.update(TINY)
    main.policy.collect.n_sample = 2
    main.policy.learn.batch_size = 2
    return main, create
