"""
The tasks of the comparison, and the settings that each side tries on each, the shipped config first. All sides have
equally many tries, and a key that helps one side is tried by the others if they have it too. ``CLASSIC`` has the tasks
of ``benchmarks.classic.evidence``, where further tries are ablations.
"""
from typing import Any, Dict, List, NamedTuple

from benchmarks.shared.starts import EPISODES

Tries = List[Dict[str, Any]]  # keys by dotted path, below ``policy`` or from ``env`` on, in place of the config's

SIDES = dict(grpo='GRPO', gae='critic', ppo='PPO')
TRIES = 4  # of each side
TUNING_SEEDS = (100, 101)
REPORTED_SEEDS = tuple(range(10, 20))


class Task(NamedTuple):
    """
    Overview:
        An environment: title, the greedy return to reach, the environment steps of a run and between two evaluations, \
        the tries of each side, a description, whether environment and model are the plugin's own, the beginning of \
        the configs' names where it is not the task's, and the episodes of an evaluation.
    """
    title: str
    bar: float
    budget: int
    interval: int
    tries: Dict[str, Tries]
    about: str = ''
    plugin: bool = False
    config: str = ''
    episodes: int = EPISODES


SHIPPED: Dict[str, Any] = {}


def linear(collects: int) -> Dict[str, Any]:
    """DI-engine's PPO: the rate falls to 0 over so many collects."""
    return {'learn.lr_scheduler': dict(epoch_num=collects, min_lr_lambda=0.0)}


def collects(envs: int, samples: int) -> Dict[str, Any]:
    return {'env.collector_env_num': envs, 'collect.n_sample': samples}


def groups(size: int, number: int, batch: int) -> Dict[str, Any]:
    """So many groups of this size in an update, with mini-batches of so many groups."""
    return {
        'group_size': size,
        'env.collector_env_num': size * number,
        'collect.groups': number,
        'learn.batch_groups': batch
    }


CARTPOLE = Task(
    'CartPole-v1',
    475,
    150_000,
    2_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.learning_rate': 3e-3},
            {'learn.advantage': 'return_to_go_by_step'},
            {**groups(4, 3, 3), 'learn.lr_scheduler.num_training_steps': 80},
        ],
        gae=[
            SHIPPED,
            {'learn.critic.gae_lambda': 0.98},
            {'learn.learning_rate': 1e-3, 'learn.critic.gae_lambda': 0.98},
            {'learn.learning_rate': 1e-3, 'learn.entropy.weight': 0.01},
        ],
        ppo=[
            SHIPPED,
            {'learn.learning_rate': 3e-4, 'collect.gae_lambda': 0.95},
            # RL Baselines3 Zoo's, but for its falling clip range, which DI-engine has not
            {**collects(8, 256), **linear(390), 'learn.batch_size': 256, 'learn.epoch_per_collect': 20,
             'learn.entropy_weight': 0.0, 'collect.discount_factor': 0.98, 'collect.gae_lambda': 0.8},
            # DI-engine's own, but for its network
            {**collects(8, 256), 'learn.epoch_per_collect': 2, 'collect.discount_factor': 0.9,
             'collect.gae_lambda': 0.95},
        ],
    ),
)  # yapf: disable
ACROBOT = Task(
    'Acrobot-v1',
    -100,
    200_000,
    2_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.learning_rate': 1e-3},
            groups(4, 4, 2),
            {**groups(8, 2, 1), 'learn.learning_rate': 1e-3},
        ],
        ppo=[
            SHIPPED,
            {'learn.learning_rate': 1e-3, 'learn.epoch_per_collect': 10, 'collect.n_sample': 1024},
            {'learn.learning_rate': 1e-3, 'learn.epoch_per_collect': 10, 'collect.n_sample': 512},
            # RL Baselines3 Zoo's, but for its normalised observations, which no side has
            {**collects(16, 4096), 'learn.learning_rate': 3e-4},
        ],
    ),
)  # yapf: disable
PENDULUM = Task(
    'Pendulum-v1',
    -200,
    200_000,
    4_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.learning_rate': 5e-4},
            {'collect.discount_factor': 0.9},
            groups(8, 1, 1),
        ],
        ppo=[
            SHIPPED,
            {'collect.n_sample': 3200},  # whole episodes, so that no step is dropped
            # RL Baselines3 Zoo's, but for its noise that depends on the state
            collects(4, 4096),
            # DI-engine's own, but for its network
            {**collects(10, 5000), 'learn.batch_size': 32},
        ],
    ),
)  # yapf: disable
LUNARLANDER = Task(
    'LunarLander-v3',
    200,
    600_000,
    20_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.entropy.weight': 0.01},
            {'collect.discount_factor': 0.999},
            groups(8, 4, 2),
        ],
        gae=[
            SHIPPED,
            {'learn.critic.gae_lambda': 0.98},
            {'learn.learning_rate': 3e-4, 'learn.critic.gae_lambda': 0.98},
            {'collect.discount_factor': 0.999},
        ],
        ppo=[
            SHIPPED,
            {'collect.n_sample': 2048, 'learn.epoch_per_collect': 10},
            # RL Baselines3 Zoo's
            {'collect.n_sample': 16384, 'collect.gae_lambda': 0.98},
            # DI-engine's own, but for its network
            {**collects(8, 512), 'learn.epoch_per_collect': 10, 'collect.discount_factor': 0.99},
        ],
    ),
)  # yapf: disable


def of_game(title: str, about: str, bar: float, interval: int) -> Task:
    """A game of several turns: each side tries a higher rate, smaller mini-batches, and one thing of its own."""
    critic = [SHIPPED, {'learn.learning_rate': 1e-3}]
    return Task(
        title,
        bar,
        400_000,
        interval,
        dict(
            grpo=[
                SHIPPED,
                {'learn.learning_rate': 1e-3},
                {'learn.batch_groups': 4},
                {'learn.adv_method': 'grpo'},
            ],
            gae=[*critic, {'learn.batch_groups': 4}, {'learn.critic.gae_lambda': 1.0}],
            ppo=[
                *critic,
                {'learn.batch_size': 80},
                {'env.collector_env_num': 32},  # drops fewer steps
            ],
        ),
        about=about,
        plugin=True,
    )  # yapf: disable


THINK_ANSWER = Task(
    'think_answer',
    1.0,
    400_000,
    5_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.batch_groups': 4},
            {'learn.batch_groups': 2},
            {'learn.adv_method': 'grpo'},
        ],
        gae=[
            SHIPPED,
            {'learn.batch_groups': 4},
            {'learn.batch_groups': 8},
            {'learn.critic.gae_lambda': 1.0},
        ],
        ppo=[
            SHIPPED,
            {'learn.batch_size': 320},
            {'env.collector_env_num': 64},  # drops fewer steps
            {'collect.gae_lambda': 1.0},
        ],
    ),
    about='Four questions; the return is the share that is solved.',
    plugin=True,
)  # yapf: disable
SPELL_BACKWARD = Task(
    'spell_backward',
    0.8,
    200_000,
    5_000,
    dict(
        grpo=[
            SHIPPED,
            {'learn.batch_groups': 16},
            {'learn.batch_groups': 8},
            {'learn.learning_rate': 1e-4},
        ],
        gae=[
            SHIPPED,
            {'learn.batch_groups': 16},
            {'learn.critic.gae_lambda': 1.0},
            {'learn.learning_rate': 1e-4},
        ],
        ppo=[
            SHIPPED,
            {'learn.learning_rate': 1e-4},
            {'learn.learning_rate': 1e-4, 'learn.adv_norm': True, 'collect.gae_lambda': 0.95},
            {'learn.learning_rate': 1e-4, 'env.collector_env_num': 64},  # drops fewer steps
        ],
    ),
    about='Words of 5 to 7 letters, after a careless teacher; the return is the share of 512 held-out words that is '
    'spelled right. All runs start from the model of `config/spell_backward_sft_config.py`, seed 0.',
    plugin=True,
)  # yapf: disable
TASKS = dict(
    cartpole=CARTPOLE,
    acrobot=ACROBOT,
    pendulum=PENDULUM,
    lunarlander=LUNARLANDER,
    guess=of_game(
        'guess', 'Find a number of 1 to 7 in three turns; the bar is six of seven numbers.', 0.85, 5_000
    ),
    key_and_door=of_game(
        'key_and_door', 'Remember a colour over two turns; the bar is all four doors.', 1.0, 2_000
    ),
    think_answer=THINK_ANSWER,
    spell_backward=SPELL_BACKWARD,
)  # yapf: disable


def as_shipped(
        title: str,
        bar: float,
        budget: int,
        interval: int,
        keys: Dict[str, Any] = {},
        own: Dict[str, Tries] = {},
        **further: Any
) -> Task:
    """A task of ``benchmarks.classic.evidence``: every side with its shipped config and these keys. ``own``: further
    keys of some sides, of the first try and of others that show what a difference comes from."""
    tries = {side: [{**keys, **more} for more in own.get(side, [{}])] for side in SIDES}
    return Task(title, bar, budget, interval, tries, **further)


# GRPO as on LunarLander: sixteen episodes an update, mini-batches of eight whole ones, until the KL is 0.015.
WHOLE_EPISODES = {
    **groups(8, 2, 1), 'learn.batch_steps': None, 'learn.epoch_per_collect': 20, 'learn.target_kl': 0.015,
    'learn.learning_rate': 1e-3
}  # yapf: disable
CRITICS = [{}, {'learn.critic.gae_lambda': 1.0}]  # as shipped, and without estimates of what follows
HOPPER = {'env.env_id': 'Hopper-v5', 'model.obs_shape': 11, 'model.action_shape': 3}
CLASSIC = dict(
    mountaincar_continuous=as_shipped('MountainCarContinuous-v0', 90, 200_000, 20_000),
    lunarlander_continuous=as_shipped('LunarLanderContinuous-v3', 200, 600_000, 20_000),
    bipedalwalker=as_shipped('BipedalWalker-v3', 300, 500_000, 50_000, episodes=20),
    minigrid_empty=as_shipped(
        'MiniGrid-Empty-8x8-v0', 0.9, 100_000, 5_000, {'env.env_id': 'MiniGrid-Empty-8x8-v0'}, plugin=True,
        config='minigrid', episodes=20
    ),
    minigrid_doorkey=as_shipped(
        'MiniGrid-DoorKey-5x5-v0', 0.9, 300_000, 10_000, plugin=True, config='minigrid', episodes=50
    ),
    halfcheetah=as_shipped(
        'HalfCheetah-v5', 1000, 300_000, 20_000,
        own=dict(gae=CRITICS, grpo=[{}, WHOLE_EPISODES]), episodes=20
    ),
    breakout=as_shipped(
        'ALE/Breakout-v5, one life', 3, 1_000_000, 50_000, own=dict(gae=CRITICS), plugin=True, episodes=100
    ),
    hopper=as_shipped(
        'Hopper-v5', 1000, 300_000, 20_000, HOPPER, own=dict(grpo=[WHOLE_EPISODES, {}]), config='halfcheetah',
        episodes=20
    ),
)  # yapf: disable
EVERY = {**TASKS, **CLASSIC}
