"""A task for each kind of spaces: the action must match what the observation shows. An episode has 8 steps."""
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

STEPS, NUMBERS = 8, 4
SHAPES = dict(obs_shape=NUMBERS, action_shape=NUMBERS, action_space='discrete')
HYBRID_SHAPES = dict(action_type_shape=NUMBERS, action_args_shape=1)
# What a config of each kind has besides the sizes.
MODELS = dict(
    discrete=SHAPES,
    several=dict(SHAPES, action_shape=[NUMBERS, 2]),
    continuous=dict(SHAPES, action_shape=1, action_space='continuous'),
    hybrid=dict(SHAPES, action_shape=HYBRID_SHAPES, action_space='hybrid'),
    masked=SHAPES,
    dict=dict(SHAPES, obs_shape=NUMBERS + 2),
    tuple=dict(SHAPES, obs_shape=NUMBERS + 2),
    image=dict(SHAPES, obs_shape=[1, 36, 36], encoder_hidden_size_list=[8, 16, 64]),
    memory=dict(SHAPES, type='recurrent_vac'),
)
FLATTENED = ('dict', 'tuple')


class Matching(gymnasium.Env):
    """A number 0 to 3 is shown, for models with a memory in the first step alone. Rewards lie in [0, 1]: a part for
    each part of the action that matches."""

    def __init__(self, kind):
        self.kind = kind
        vector = Box(0, 1, (NUMBERS, ), np.float32)
        mask = Dict(observation=vector, action_mask=Box(0, 1, (NUMBERS, ), np.int8))
        both = dict(a=vector, b=Box(0, 1, (2, ), np.float32))
        self.observation_space = dict(
            masked=mask, dict=Dict(both), tuple=Tuple(both.values()), image=Box(0, 255, (1, 36, 36), np.uint8)
        ).get(kind, vector)
        number, value = Discrete(NUMBERS), Box(-1, 1, (1, ), np.float32)
        self.action_space = dict(
            several=MultiDiscrete([NUMBERS, 2]), continuous=value, hybrid=Dict(action_type=number, action_args=value)
        ).get(kind, number)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self._see(), {}

    def _see(self):
        if self.kind == 'memory' and self.taken > 0:
            return np.zeros(NUMBERS, np.float32)
        self.shown = int(self.np_random.integers(NUMBERS))
        vector = np.eye(NUMBERS, dtype=np.float32)[self.shown]
        if self.kind == 'image':
            image = np.zeros((1, 36, 36), np.uint8)
            image[0, :, self.shown * 9:self.shown * 9 + 9] = 200
            return image
        noise = self.np_random.random(2).astype(np.float32)
        mask = np.ones(NUMBERS, np.int8)
        mask[(self.shown + 1) % NUMBERS] = 0
        return dict(
            masked=dict(observation=vector, action_mask=mask), dict=dict(a=vector, b=noise), tuple=(vector, noise)
        ).get(self.kind, vector)

    def step(self, action):
        target = (self.shown - 1.5) / 2  # -0.75 to 0.75
        if self.kind == 'several':
            reward = (action[0] == self.shown) / 2 + (action[1] == self.shown % 2) / 2
        elif self.kind == 'continuous':
            reward = max(0., 1 - abs(float(action[0]) - target))
        elif self.kind == 'hybrid':
            right = int(action['action_type']) == self.shown
            reward = right / 2 + max(0., 1 - abs(float(action['action_args'][0]) - target)) / 2
        else:
            assert self.kind != 'masked' or int(action) != (self.shown + 1) % NUMBERS
            reward = float(int(action) == self.shown)
        self.taken += 1
        return self._see(), float(reward), False, self.taken == STEPS, {}


def config(kind, seed=0):
    """main_config and create_config, with which a few seconds are enough on one core."""
    main = dict(
        exp_name=f'matching_{kind}_{seed}',
        env=dict(
            env_id='Matching-v0',
            env_kwargs=dict(kind=kind, disable_env_checker=True),
            gymnasium_wrappers=['gymnasium.wrappers:FlattenObservation'] if kind in FLATTENED else [],
            evaluator_env_num=8,
            n_evaluator_episode=8,
            stop_value=0.9 * STEPS,
        ),
        policy=dict(
            group_size=8,
            model=dict(dict(encoder_hidden_size_list=[64, 64]), **MODELS[kind]),
            learn=dict(
                epoch_per_collect=8,
                batch_groups=2,
                learning_rate=1e-3,
                advantage='return_to_go_by_step',
                reduction='token',
                clip=dict(ratio=0.2)
            ),
            collect=dict(groups=8, discount_factor=0.),
            eval=dict(evaluator=dict(eval_freq=5)),
        ),
    )
    create = dict(env=dict(type='gymnasium_env', import_names=['tests.act.matching']), policy=dict(type='grpo'))
    return main, create


if 'Matching-v0' not in gymnasium.registry:
    gymnasium.register('Matching-v0', Matching)
