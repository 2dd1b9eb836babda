"""Policies with a bound environment, without DI-engine's pipeline, and groups that they sampled."""
import copy
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import torch
from ding.config import compile_config
from ding.utils import deep_merge_dicts
from easydict import EasyDict

from ding_grpo.act.actor import Wanted
from ding_grpo.data.batch import Batch
from ding_grpo.learn.observer import Observer
from ding_grpo.policy import GRPOPolicy
from dizoo_llm import Reply
from dizoo_llm.envs import TokenEnv
from tests.shipped import small
from tests.tasks import Game

# As a preset alone defines the loss: nothing of the loss is set individually.
PRESET = dict(adv_method=None, clip=dict(ratio=None))
ALONE = dict(advantage='none', adv_method=None, entropy=dict(weight=0.))  # an extra loss without a reward
DISCRETE = dict(obs_shape=3, action_shape=4, action_space='discrete', encoder_hidden_size_list=[64, 64])
CONTINUOUS = dict(DISCRETE, action_shape=2, action_space='continuous')
HYBRID = dict(DISCRETE, action_shape=dict(action_type_shape=3, action_args_shape=2), action_space='hybrid')


class OpenPolicy(GRPOPolicy):
    """The parts that derived policies use."""
    model, learning = (property(attrgetter(name)) for name in ('_model', '_learning'))
    updater, terms = (property(attrgetter(f'_learning.{name}')) for name in ('updater', 'terms'))
    reference = property(attrgetter('_learning.reference.copy'))
    advantage = property(attrgetter('_advantage'))

    def use_sgd(self, lr=1.):
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=lr)

    def read(self, batch, **options):
        with torch.no_grad():
            return self.actor.read(self._model, batch, Wanted(**options))


class Seen(Observer):
    """What a policy learned from: the batch of each update, and the mini-batch of each step."""

    def __init__(self, policy):
        self.learned, self.steps = [], []
        policy.observers['seen'] = self

    def before(self, update, batch, learned):
        self.learned.append(learned)
        return {}

    def step(self, batch, logp):
        self.steps.append(batch)
        return {}


def learned(policy, data):
    """The rows of an update on these groups, with their advantages."""
    seen = Seen(policy)
    policy.learn_mode.forward(copy.deepcopy(data))
    return seen.learned[0]


def make_policy(main, create, seed=0, model=None, env=None, field=None):
    main, create = copy.deepcopy(main), copy.deepcopy(create)
    cfg = compile_config(EasyDict(main), seed=seed, auto=True, create_cfg=EasyDict(create), save_cfg=False)
    torch.manual_seed(seed)
    policy = OpenPolicy(cfg.policy, model=model, enable_field=field or ['learn', 'collect', 'eval'], seed=seed)
    policy.bind((env or TokenEnv(max_new_tokens=6)).token_spec)
    return policy


def token_policy(policy={}, collect={}, base=None, model=None, env=None, seed=0, field=None, instruments={}, **learn):
    """The policy of think_answer, made small, with these changes of the sections ``policy``, ``collect``,
    ``instruments`` and ``learn``. ``base`` is the folder of a pretrained model."""
    main, create = small('think_answer_grpo', policy=policy)
    main.policy.collect.update(collect)
    main.policy.setdefault('instruments', EasyDict()).update(instruments)
    for key, value in learn.items():
        nested = key in ('clip', 'kl', 'entropy', 'critic', 'off_policy')
        main.policy.learn[key] = {**main.policy.learn.get(key, {}), **value} if nested else value
    if base is not None:
        main.policy.model = dict(policy.get('model', {}), pretrained=str(base))
    return make_policy(main, create, seed, model, env, field)


def step_policy(model, group_size=2, **sections):
    """A policy of a model that acts in steps; ``sections`` are of ``policy``."""
    policy = dict(group_size=group_size, model=model, collect=dict(groups=1), learn=dict(batch_groups=1))
    main = dict(
        exp_name='run',
        env=dict(collector_env_num=group_size, evaluator_env_num=1, n_evaluator_episode=1),
        policy=deep_merge_dicts(policy, sections),
    )
    create = dict(
        env=dict(type='gymnasium_env', import_names=['ding_grpo']),
        env_manager=dict(type='base'),
        policy=dict(type='grpo'),
        collector=dict(type='group')
    )
    return make_policy(main, create, env=SimpleNamespace(token_spec=None))


def vector(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


def weights(policy):
    return vector(policy.model.parameters())


def gradient(policy):
    """Of the last step."""
    return vector(p.grad for p in policy.model.parameters())


def state(policy):
    """Weights and optimizer as they are now."""
    whole = policy.learn_mode.state_dict()
    return copy.deepcopy([whole['model'], whole['optimizer']['state']])


def change(model, factor):
    """Multiply the matrices of a model: a reference that differs, or distributions that are far from uniform."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(factor)


def resumed(policy, make):
    """Another policy with the state of this one."""
    other = make()
    other.learn_mode.load_state_dict(copy.deepcopy(policy.learn_mode.state_dict()))
    return other


class Step:
    """What the policy reads of a DI-engine timestep."""

    def __init__(self, reward, info, done=True):
        self.reward, self.info, self.done = reward, info, done


class Timestep(Step):
    """That of an environment of steps."""

    def __init__(self, reward, truncated=False, done=True):
        super().__init__(np.array([reward]), dict(truncated=truncated), done)
        self.obs = np.full(3, reward, np.float32)


def reward(group, row):
    """For ``sample_groups``: no group has equal rewards."""
    return float((group + row) % 3) / 2


def same_reward(group, row):
    return 1.


def _sample(policy, episodes, number):
    """The sample of a group, as the collector completes it."""
    sample, = policy.collect_mode.get_train_sample(episodes)
    return dict(sample, collect_iter=0, group_id=number, seconds_sampling=0.1, seconds_scoring=0.1, replaced_groups=0.)


def sample_groups(policy, indices=(0, 1), max_new_tokens=6, collect=0, reward=None, env=None):
    """One group for each problem; ``reward`` replaces the task's, as function of (group, row)."""
    env, samples = env or TokenEnv(max_new_tokens=max_new_tokens), []
    for number, index in enumerate(indices):
        obs = {i: env.reset(options=dict(index=index))[0] for i in range(policy.cfg.group_size)}
        out = policy.collect_mode.forward(obs, row_keys={i: (collect, number, i) for i in obs})
        episodes = []
        for i in obs:
            env.reset(options=dict(index=index))
            _, r, _, _, info = env.step(out[i]['action'].numpy())
            step = Step(r if reward is None else reward(number, i), info)
            episodes.append([policy.collect_mode.process_transition(obs[i], out[i], step)])
        samples.append(_sample(policy, episodes, number))
    return samples


def update(policy, indices=(0, 1), reward=reward, collect=0):
    """The metrics of one update on new groups."""
    return policy.learn_mode.forward(sample_groups(policy, indices, collect=collect, reward=reward))


def sample_dialogues(policy, env, groups, collect=0):
    """Groups of episodes of several turns, for problems 0, 1, ...; all rows of a group take their turns together."""
    envs, samples = [copy.copy(env) for _ in range(policy.cfg.group_size)], []
    for number in range(groups):
        policy.collect_mode.reset()
        options = dict(index=number % len(env.problems))
        obs = {i: one.reset(seed=number, options=options)[0] for i, one in enumerate(envs)}
        episodes = [[] for _ in envs]
        while obs:
            out = policy.collect_mode.forward(obs, row_keys={i: (collect, number, i) for i in obs})
            for i in list(obs):
                following, reward, terminated, truncated, info = envs[i].step(out[i]['action'].numpy())
                episodes[i].append(policy.collect_mode.process_transition(obs[i], out[i], Step(reward, info)))
                obs[i] = following
                if terminated or truncated:
                    del obs[i]
        samples.append(_sample(policy, episodes, number))
    return samples


def sample_steps(policy, lengths, reward=lambda row, step: 1., truncated=(), number=0):
    """A group whose rows have these lengths; observations are random, the first one shared."""
    generator = torch.Generator().manual_seed(number)
    first = torch.randn(3, generator=generator)
    episodes = []
    for row, length in enumerate(lengths):
        episode = []
        for step in range(length):
            obs = first if step == 0 else torch.randn(3, generator=generator)
            out = policy.collect_mode.forward({row: obs.numpy()}, row_keys={row: (0, number, row)})[row]
            ends = step == length - 1
            timestep = Timestep(reward(row, step), ends and row in truncated, ends)
            episode.append(policy.collect_mode.process_transition(obs, out, timestep))
        episodes.append(episode)
        policy.collect_mode.reset([row])
    return _sample(policy, episodes, number)


def make_batch(weight, **fields):
    """Rows of one group, with these fields; the others are plain."""
    rows = len(weight)
    flags = {name: torch.zeros(rows, dtype=torch.bool) for name in ('truncated', 'failed', 'equal', 'filtered')}
    numbers = {
        name: torch.zeros(rows).long()
        for name in ('group', 'problem', 'group_id', 'collect_iter', 'sampled_after')
    }
    steps = {name: torch.zeros_like(weight) for name in ('action', 'logp_old', 'reward')}
    whole = dict(length=(weight != 0).sum(1), turn=torch.where(weight != 0, 0, -1))
    return Batch(
        **dict(flags | numbers | steps | whole, weight=weight, row=torch.arange(rows), reward_parts={}) | fields
    )


class Chatter(Game):
    """Random replies and rewards, of which some are empty, too long, or the last."""
    weights, chars, prompts = dict(a=1.0), 'abcdefg.', ('a', 'ab', 'abc', 'abcd', 'abcde')

    def begin(self, problem, seed):
        return dict(random=torch.Generator().manual_seed(seed))

    def respond(self, problem, state, turn):
        number, done, reward = torch.randint(0, 10, (3, ), generator=state['random']).tolist()
        text = ''.join(self.chars[i] for i in torch.randint(0, 8, (number, ), generator=state['random']).tolist())
        return Reply(text, dict(a=reward + len(turn.text) / 7), done=done == 0, anchor=number)


# Options of the environment, and of ``policy.collect``.
SETTINGS = {
    'plain': (dict(max_turns=4, max_new_tokens=5, max_reply_tokens=10), {}),
    'cut turns': (dict(max_turns=5, max_new_tokens=2, max_reply_tokens=10), {}),
    'stop strings': (dict(max_turns=4, max_new_tokens=6, max_reply_tokens=8, stop=['.', 'ab', 'gg']), {}),
    'budgets': (dict(max_turns=5, max_new_tokens=5, max_reply_tokens=6, max_tokens=17), dict(temperature=0.7)),
    'top-k': (dict(max_turns=4, max_new_tokens=5, max_reply_tokens=10, stop=['a']), dict(top_k=4, top_p=0.9)),
}
BY_TURN = dict(adv_method='no_std', advantage='return_to_go_by_step', reduction='constant')
