"""
GRPO (https://arxiv.org/abs/2402.03300) on a tiny language model, from top to bottom and without DI-engine's pipeline:

    python examples/grpo_in_150_lines.py --seed 0

It learns the task of config/think_answer_grpo_config.py with the same settings at a constant learning rate, in about as
many updates. The first update equals that of the policy ``grpo`` (tests/project/test_example.py). The policy adds
configs, checkpoints, exact resume, logs, evaluation records, micro-batches, several processes, other losses, adapters
and environments.

Letters in shapes: P prompts, G rows a group, B = P G rows, L tokens of a prompt, S tokens of the longest completion,
V tokens of the vocabulary, H hidden size.
"""
import argparse
import time
from typing import Dict, List, NamedTuple

import ding_grpo  # noqa: F401  first, so that the import of DI-engine is quiet

import torch
from torch import Tensor

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rl_utils import group_advantage, grpo_data, grpo_error, linear_log_prob, sequence_mean
from ding_grpo.rollout import Sampling, generate
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.tokenizer import build_word_tokenizer

GROUP, PROMPTS, BATCH = 16, 16, 8  # rows a group; groups a collect; groups a mini-batch
TOKENS = 10  # most tokens of a completion
ENTROPY, RATE, CLIP, MAX_NORM = 0.015, 1e-4, 0.2, 1.0

TASK = ThinkAnswerTask()
TOKENIZER = build_word_tokenizer(TASK.words)
EOS = TOKENIZER.eos_token_id


class Rows(NamedTuple):
    """Completions of B rows, padded on the right."""
    prompts: List[Tensor]  # B of (L, )
    action: Tensor  # (B, S)
    logp_old: Tensor  # (B, S), log-probabilities from the sampler
    weight: Tensor  # (B, S), 1 on tokens, 0 after a row's end
    reward: Tensor  # (B, )
    group: Tensor  # (B, )


def make_model(seed: int) -> CausalLM:
    torch.manual_seed(seed)
    shape = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
    model = CausalLM(config=dict(model_type='llama', vocab_size=32, max_position_embeddings=64, **shape))
    model.limit_vocabulary(len(TOKENIZER))
    return model


def prompt_of(index: int) -> Tensor:
    return torch.tensor(TOKENIZER.encode(TASK.problem(index).prompt))  # (L, )


def score_of(index: int, completion: Tensor) -> Dict[str, float]:
    """The task's parts: the right answer, the format, and solved, which is both of them, ended by EOS."""
    parts = TASK.score(TASK.problem(index), TOKENIZER.decode([t for t in completion.tolist() if t != EOS]))
    return {**parts, 'solved': parts['solved'] * float(completion[-1] == EOS)}


def reward_of(index: int, completion: Tensor) -> float:
    """The weighted sum of the parts."""
    return sum(TASK.weights[name] * value for name, value in score_of(index, completion).items())


def collect(model: CausalLM, indices: List[int], generator: torch.Generator) -> Rows:
    """Sample G completions of each problem, and score them."""
    rows = [index for index in indices for _ in range(GROUP)]  # B problems, group after group
    prompts = [prompt_of(index) for index in rows]
    uniform = torch.rand(len(rows), TOKENS, dtype=torch.double, generator=generator)  # (B, T): the random numbers
    found = generate(model, PromptBatch.of(prompts, model.device), TOKENS, [EOS], Sampling(), uniform)
    reward = [reward_of(index, action[:n]) for index, action, n in zip(rows, found.action, found.length)]
    return Rows(
        prompts=prompts,
        action=found.action.clamp(min=0),  # (B, S), -1 after a row's end becomes any valid token
        logp_old=found.logp,  # (B, S)
        weight=(torch.arange(found.action.shape[1]) < found.length.unsqueeze(1)).float(),  # (B, S)
        reward=torch.tensor(reward),  # (B, )
        group=torch.arange(len(indices)).repeat_interleave(GROUP),  # (B, )
    )


def update(model: CausalLM, optimizer: torch.optim.Optimizer, rows: Rows, generator: torch.Generator) -> float:
    """One epoch over the groups in random order; returns the mean entropy."""
    adv = group_advantage(rows.reward, rows.group, 'no_std')  # (B, ): reward minus the mean of its group
    entropies = []
    for groups in torch.randperm(int(rows.group.max()) + 1, generator=generator).split(BATCH):  # (BATCH, ) each
        chosen = torch.cat([(rows.group == g).nonzero().squeeze(1) for g in groups])  # (b, ): rows of these groups
        weight = rows.weight[chosen]  # (b, S)
        weight = weight[:, :int(weight.sum(1).max())]  # (b, s): up to the longest of them
        action, logp_old = (x[chosen, :weight.shape[1]] for x in (rows.action, rows.logp_old))  # (b, s)
        # each distinct prompt is read once for all rows that continue it, and common beginnings of rows once
        prompts = PromptBatch.of([rows.prompts[i] for i in chosen.tolist()], model.device)
        hidden, state = model.completion_states(prompts, action, weight.sum(1).long())  # (M, H); (b, s)
        # log softmax of hidden times the output matrix (V, H), without ever holding (M, V)
        head = model.output_head()._asdict()
        logp, entropy = linear_log_prob(  # (b, s)
            hidden, index=action, mask=weight, state=state, return_entropy=True, **head
        )
        data = grpo_data(logp, logp_old, None, adv[chosen], weight)  # no reference: beta is 0
        loss, _ = grpo_error(data, clip_ratio=CLIP, beta=0.0)
        loss = loss - ENTROPY * sequence_mean(entropy, weight)  # mean over a row's tokens, then over rows
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        entropies.append((entropy.detach() * weight).sum().item() / weight.sum().item())
    return sum(entropies) / len(entropies)


def evaluate(model: CausalLM) -> float:
    """Share of the questions that greedy decoding solves."""
    prompts = [prompt_of(index) for index in range(len(TASK))]
    found = generate(model, PromptBatch.of(prompts, model.device), TOKENS, [EOS])
    solved = [score_of(i, a[:n])['solved'] for i, (a, n) in enumerate(zip(found.action, found.length))]
    return sum(solved) / len(TASK)


def train(seed: int, updates: int) -> int:
    """Train until all questions are solved; returns the number of updates."""
    model, generator = make_model(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    start = time.perf_counter()
    for number in range(updates):
        if number % 10 == 0:
            solved = evaluate(model)
            print(f'update {number}  solved {solved:.2f}  {time.perf_counter() - start:.0f} s', flush=True)
            if solved == 1:
                return number
        indices = torch.randint(len(TASK), (PROMPTS, ), generator=generator).tolist()
        rows = collect(model, indices, generator)
        entropy = update(model, optimizer, rows, generator)
        if number % 10 == 0:
            print(f'update {number}  reward {rows.reward.mean():.2f}  entropy {entropy:.2f}', flush=True)
    return updates


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--updates', type=int, default=300)
    train(**vars(parser.parse_args()))
