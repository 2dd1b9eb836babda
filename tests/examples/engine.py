"""The example as a module, and the policy ``grpo`` on the example's task, in float64 on the CPU."""
import importlib.util
import os
from typing import Any, Callable, Dict, List

import torch
from ding.utils import POLICY_REGISTRY, deep_merge_dicts
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM)

from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem, Task
from tests.policies import sample_groups

PATH = os.path.join(os.path.dirname(__file__), '..', '..', 'examples', 'grpo.py')
WORDS = ['ba', 'cab', 'hgfed', 'acbd']  # prompts of four lengths
SHAPE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)


def _load() -> Any:
    spec = importlib.util.spec_from_file_location('examples_grpo', PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = _load()


class SortTask(Task):
    """The example's task, whose prompts are encoded as there."""
    weights = dict(sorted=1.0)
    chars = example.LETTERS + '='

    def __len__(self) -> int:
        return len(WORDS)

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f'{WORDS[index]}=')

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(sorted=example.reward_of(problem.prompt[:-1], completion, True))


def make_model(seed: int, kind: str = 'llama') -> PreTrainedModel:
    """Weights that are large enough for probabilities that differ. The norms of transformers compute in float32."""
    torch.manual_seed(seed)
    size = len(SortTask.chars) + 3  # DI-engine's tokenizer has <unk> as well
    config, model = dict(llama=(LlamaConfig, LlamaForCausalLM), qwen2=(Qwen2Config, Qwen2ForCausalLM))[kind]
    model = model(config(vocab_size=size, initializer_range=0.3, **SHAPE))
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith('RMSNorm'):
                setattr(module, name, torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon))
    return model.double().eval()


def disturb(model: PreTrainedModel, seed: int, size: float) -> None:
    """Add noise to all weights, so that ratios and the KL to the start are not those of the first step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn(p.shape, generator=generator, dtype=p.dtype)


class Engine:
    """The policy ``grpo`` with the weights of ``model``, which it trains, and an environment of ``SortTask``."""

    def __init__(self, model: PreTrainedModel, group: int, max_tokens: int, seed: int = 0, **learn: Any) -> None:
        kind = POLICY_REGISTRY.get('grpo')
        changes = dict(group_size=group, learn=learn, collect=dict(groups=len(WORDS)))
        torch.manual_seed(seed)  # the run's
        self.env = TokenEnv(task=SortTask(), max_new_tokens=max_tokens)
        cfg = deep_merge_dicts(kind.default_config(), changes)
        self.policy = kind(cfg, model=model, enable_field=['learn', 'collect', 'eval'])
        self.policy.bind(self.env.token_spec)

    def collect(self, reward: Callable[[int, int], float]) -> List[Dict[str, Any]]:
        """A group for each word; the reward of a row is a function of the numbers of group and row."""
        samples = sample_groups(self.policy, range(len(WORDS)), reward=reward, env=self.env)
        # otherwise advantages are rounded to float32
        return [dict(sample, reward=sample['reward'].double()) for sample in samples]

    def learn(self, samples: List[Dict[str, Any]]) -> Dict[str, float]:
        return self.policy.learn_mode.forward(samples)

    def greedy(self) -> List[List[int]]:
        """The most probable completion of each word."""
        obs = {i: self.env.reset(options=dict(index=i))[0] for i in range(len(WORDS))}
        return [out['action'].tolist() for out in self.policy.eval_mode.forward(obs).values()]


def rows_of(samples: List[Dict[str, Any]], key: str, padding: float = 0) -> Tensor:
    """(B, S): a field of all rows, padded on the right."""
    return pad_sequence(
        [row[:n] for s in samples for row, n in zip(s[key], s['length'])], batch_first=True, padding_value=padding
    )


def batch_of(samples: List[Dict[str, Any]]) -> Any:
    """The example's batch with the completions of the engine."""
    length = torch.cat([s['length'] for s in samples])
    prompts = [s['prompt'] for s in samples for _ in s['action']]
    prompt = pad_sequence(prompts, batch_first=True, padding_value=example.PAD, padding_side='left')  # (B, L)
    reward = torch.stack([s['reward'].sum(1) for s in samples])  # (P, G)
    completion = rows_of(samples, 'action', example.PAD)
    return example.Batch(
        prompt=prompt,
        prompt_mask=(prompt != example.PAD).long(),
        completion=completion,
        mask=(torch.arange(completion.shape[1]) < length.unsqueeze(1)).long(),
        logp_old=rows_of(samples, 'logp_old'),
        reward=reward.flatten(),
        adv=example.group_advantage(reward).flatten(),
    )
