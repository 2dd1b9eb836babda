"""
CartPole-v1 by a plain loop over the three modes of the policy, with environments of gymnasium as they are:

    python examples/plain_loop.py
"""
import gymnasium
import numpy as np
from config.cartpole_grpo_config import create_config, main_config
from ding.config import compile_config
from ding.envs.env.base_env import BaseEnvTimestep
from ding.policy import single_env_forward_wrapper
from ding.utils import set_pkg_seed

from ding_grpo.policy import GRPOPolicy


def play(policy, env, seed):
    """An episode, as transitions."""
    (obs, _), transitions, over = env.reset(seed=seed), [], False
    while not over:
        output = policy.collect_mode.forward({0: obs})[0]
        following, reward, over, cut, info = env.step(output['action'].item())
        over = over or cut
        step = BaseEnvTimestep(following, reward, over, dict(info, truncated=cut))
        transitions.append(policy.collect_mode.process_transition(obs, output, step))
        obs = following
    policy.collect_mode.reset([0])
    return transitions


def main(seed=0, updates=30, bar=475):
    set_pkg_seed(seed, use_cuda=False)
    policy = GRPOPolicy(compile_config(main_config, create_cfg=create_config, auto=True, save_cfg=False).policy)
    env, starts, mean = gymnasium.make('CartPole-v1'), np.random.default_rng(seed), 0
    for update in range(updates):
        groups = []
        for start in starts.integers(2 ** 31, size=policy.cfg.collect.groups).tolist():
            episodes = [play(policy, env, start) for _ in range(policy.cfg.group_size)]
            groups += policy.collect_mode.get_train_sample(episodes)
        metrics = policy.learn_mode.forward(groups)
        mean = np.mean([evaluate(policy, env, number) for number in range(20)])
        print(f'update {update}: return {metrics["reward_mean"]:.0f} sampled, {mean:.0f} greedy')
        if mean >= bar:
            break
    return mean


def evaluate(policy, env, seed):
    """The return of a greedy episode."""
    act, (obs, _), total, over = single_env_forward_wrapper(policy.eval_mode.forward), env.reset(seed=seed), 0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(act(obs).item())
        total, over = total + reward, terminated or truncated
    return total


if __name__ == '__main__':
    main()
