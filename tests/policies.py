"""A policy with a bound token environment, and groups that it sampled, without DI-engine's pipeline."""
import copy

import torch
from ding.config import compile_config
from easydict import EasyDict

from ding_grpo.data.batch import Batch
from ding_grpo.policy import GRPOPolicy
from dizoo_llm.envs import TokenEnv


def make_policy(main, create, seed=0, model=None, env=None, field=None):
    main, create = copy.deepcopy(main), copy.deepcopy(create)
    cfg = compile_config(EasyDict(main), seed=seed, auto=True, create_cfg=EasyDict(create), save_cfg=False)
    torch.manual_seed(seed)
    policy = GRPOPolicy(cfg.policy, model=model, enable_field=field or ['learn', 'collect', 'eval'], seed=seed)
    policy.bind((env or TokenEnv(max_new_tokens=6)).token_spec)
    return policy


class Step:
    """What the policy reads of a DI-engine timestep."""

    def __init__(self, reward, info):
        self.reward, self.info = reward, info


def sample_groups(policy, indices, max_new_tokens=6, collect=0, reward=None):
    """One group for each problem; ``reward`` replaces the task's, as function of (group, row)."""
    size = policy.cfg.group_size
    env = TokenEnv(max_new_tokens=max_new_tokens)
    samples = []
    for number, index in enumerate(indices):
        obs = {i: env.reset(options=dict(index=index))[0] for i in range(size)}
        keys = {i: (collect, number, i) for i in obs}
        out = policy.collect_mode.forward(obs, row_keys=keys)
        episodes = []
        for i in obs:
            env.reset(options=dict(index=index))
            _, r, _, _, info = env.step(out[i]['action'].numpy())
            step = Step(r if reward is None else reward(number, i), info)
            episodes.append([policy.collect_mode.process_transition(obs[i], out[i], step)])
        sample, = policy.collect_mode.get_train_sample(episodes)
        from_collector = dict(seconds_sampling=0.1, seconds_scoring=0.1, replaced_groups=0., group_id=number)
        samples.append(dict(sample, collect_iter=0, **from_collector))
    return samples


def sample_dialogues(policy, env, groups, collect=0):
    """Groups of episodes of several turns, for problems 0, 1, ...; all rows of a group take their turns together."""
    size, samples = policy.cfg.group_size, []
    envs = [copy.copy(env) for _ in range(size)]
    for number in range(groups):
        policy.collect_mode.reset()
        options = dict(index=number % len(env.problems))
        obs = {i: envs[i].reset(seed=number, options=options)[0] for i in range(size)}
        episodes = [[] for _ in envs]
        while obs:
            out = policy.collect_mode.forward(obs, row_keys={i: (collect, number, i) for i in obs})
            for i in list(obs):
                following, reward, terminated, truncated, info = envs[i].step(out[i]['action'].numpy())
                episodes[i].append(policy.collect_mode.process_transition(obs[i], out[i], Step(reward, info)))
                obs[i] = following
                if terminated or truncated:
                    del obs[i]
        sample, = policy.collect_mode.get_train_sample(episodes)
        from_collector = dict(seconds_sampling=0.1, seconds_scoring=0.1, replaced_groups=0., group_id=number)
        samples.append(dict(sample, collect_iter=0, **from_collector))
    return samples


def make_batch(weight, **fields):
    """Rows of one group, with these fields; the others are plain."""
    rows = len(weight)
    flags = {name: torch.zeros(rows, dtype=torch.bool) for name in ('truncated', 'failed', 'equal', 'filtered')}
    numbers = {name: torch.zeros(rows).long() for name in ('group', 'group_id', 'collect_iter', 'sampled_after')}
    steps = {name: torch.zeros_like(weight) for name in ('action', 'logp_old', 'reward')}
    whole = dict(length=(weight != 0).sum(1), turn=torch.where(weight != 0, 0, -1))
    return Batch(
        **dict(flags | numbers | steps | whole, weight=weight, row=torch.arange(rows), reward_parts={}) | fields
    )
