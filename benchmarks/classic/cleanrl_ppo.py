"""
PPO in one loop with the settings and the details of CleanRL's ``ppo.py``, written for this comparison:
``python -m benchmarks.classic.cleanrl_ppo JOB.json``.
"""
from typing import Any, Dict, List, Tuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

from benchmarks.classic.peer import Record, run
from benchmarks.shared.starts import Starts

ENVS, STEPS, TOTAL = 4, 128, 500_000
RATE, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 2.5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
EPOCHS, BATCH = 4, ENVS * STEPS // 4

Rollout = Dict[str, Tensor]  # (STEPS, ENVS, *) each


def mlp(sizes: List[int], last: float) -> nn.Sequential:
    """Linear layers with tanh between them, orthogonal weights; ``last`` is the gain of the last layer."""
    layers: List[nn.Module] = []
    for number, (inner, outer) in enumerate(zip(sizes, sizes[1:])):
        layer = nn.Linear(inner, outer)
        nn.init.orthogonal_(layer.weight, last if number == len(sizes) - 2 else 2 ** 0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = mlp([inputs, 64, 64, actions], 0.01), mlp([inputs, 64, 64, 1], 1.0)

    def forward(self, obs: Tensor) -> Tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


@torch.no_grad()
def collect(envs: SyncVectorEnv, agent: Agent, obs: Tensor, done: Tensor) -> Tuple[Rollout, Tensor, Tensor]:
    """A rollout from the observations (ENVS, *) on, with advantages; ``done`` (ENVS, ): whether an episode begins."""
    parts: List[Dict[str, Tensor]] = []
    for _ in range(STEPS):
        policy, value = agent(obs)
        action = policy.sample()
        found, reward, terminated, truncated, _ = envs.step(action.numpy())
        parts.append(
            dict(
                obs=obs,
                action=action,
                logp=policy.log_prob(action),
                value=value,
                done=done,
                reward=torch.from_numpy(reward).float()
            )
        )
        obs, done = torch.from_numpy(found).float(), torch.from_numpy(np.logical_or(terminated, truncated)).float()
    rollout = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    adv, following, over, last = torch.zeros_like(rollout['reward']), agent(obs)[1], done, torch.zeros(ENVS)
    for t in reversed(range(STEPS)):
        delta = rollout['reward'][t] + GAMMA * following * (1 - over) - rollout['value'][t]
        adv[t] = last = delta + GAMMA * LAMBDA * (1 - over) * last
        following, over = rollout['value'][t], rollout['done'][t]
    return dict(rollout, adv=adv, target=adv + rollout['value']), obs, done


def loss_of(agent: Agent, batch: Rollout) -> Tensor:
    policy, value = agent(batch['obs'])
    ratio = (policy.log_prob(batch['action']) - batch['logp']).exp()
    adv = (batch['adv'] - batch['adv'].mean()) / (batch['adv'].std() + 1e-8)
    surrogate = torch.maximum(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    near = batch['value'] + (value - batch['value']).clamp(-CLIP, CLIP)
    of_value = 0.5 * torch.maximum((value - batch['target']) ** 2, (near - batch['target']) ** 2).mean()
    return surrogate - ENTROPY * policy.entropy().mean() + VALUE * of_value


def train(job: Dict[str, Any]) -> Record:
    torch.manual_seed(job['seed'])
    order = np.random.default_rng(job['seed'])
    make = [lambda: gymnasium.make(job['env_id'])] * ENVS
    envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), RATE, eps=1e-5)
    obs, done = torch.from_numpy(envs.reset(seed=job['seed'])[0]).float(), torch.zeros(ENVS)

    @torch.no_grad()
    def act(seen: np.ndarray) -> np.ndarray:
        return agent.actor(torch.from_numpy(seen)).argmax(-1).numpy()

    updates = -(-max(TOTAL, job['budget']) // (ENVS * STEPS))  # over which the rate falls to 0
    record, update, goes_on = Record(job, Starts(job, act)), 0, True
    while goes_on:
        optimizer.param_groups[0]['lr'] = (1 - update / updates) * RATE
        rollout, obs, done = collect(envs, agent, obs, done)
        record.collected()
        flat = {name: x.flatten(0, 1) for name, x in rollout.items()}
        for _ in range(EPOCHS):
            for chosen in torch.from_numpy(order.permutation(ENVS * STEPS)).split(BATCH):
                optimizer.zero_grad()
                loss_of(agent, {name: x[chosen] for name, x in flat.items()}).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()
        update += 1
        goes_on = record.updated(update * ENVS * STEPS)
    return record


if __name__ == '__main__':
    run(train, {'gymnasium': gymnasium.__version__, 'torch': torch.__version__.split('+')[0]})
