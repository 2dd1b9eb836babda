"""The interface of DI-engine's agents."""
import json
import os

import h5py
import pytest
import torch
from ding.bonus.common import EvalReturn

from ding_common import ConfigError
from ding_grpo import GRPO
from tests.bonus.helper import right, small
from tests.runs import metrics

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]


def short(completion):
    return None if len(set(completion)) == 2 else 1.0


def test_a_script_for_an_agent_of_ding_engine():
    """``PPOF(env_id=...)`` with the other class."""
    pytest.importorskip('moviepy')
    from moviepy import VideoFileClip
    agent = GRPO(env_id='CartPole-v1', exp_name='run', stop_value=1e9, group_size=2, groups=2, n_evaluator_episode=2)
    agent.train(step=1, collector_env_num=4, evaluator_env_num=2, n_iter_save_ckpt=1)
    assert len(metrics()) == 1
    plain, filmed = agent.deploy(seed=[3, 4]), agent.deploy(seed=[3, 4], video='out.mp4')
    assert isinstance(plain, EvalReturn) and plain == filmed
    kept = agent.deploy(enable_save_replay=True, seed=3)
    folder, = os.listdir('run/videos')
    path, = os.listdir(f'run/videos/{folder}')
    with VideoFileClip(f'run/videos/{folder}/{path}') as one, VideoFileClip('out.mp4') as both:
        assert one.n_frames == kept.eval_value + 1  # of each step, and of the start
        assert abs(both.n_frames - 2 * (plain.eval_value + 1)) <= 2  # where two clips meet
    assert agent.batch_evaluate(env_num=2, n_evaluator_episode=2).eval_value > 0
    before = agent.model.state_dict()
    assert agent.best is agent and set(agent.model.state_dict()) == set(before)


def test_the_best_weights_are_those_of_its_checkpoint():
    agent = GRPO(env='CartPole-v1', exp_name='run', group_size=2, groups=2, n_evaluator_episode=2).train(updates=1)
    best = {name: p.clone() for name, p in torch.load('run/ckpt/ckpt_best.pth.tar', weights_only=True)['model'].items()}
    with torch.no_grad():
        for p in agent.model.parameters():
            p.zero_()
    assert all(torch.equal(p, best[name]) for name, p in agent.best.model.state_dict().items())
    with pytest.raises(ConfigError, match='GRPO.best..: the run has not begun'):
        GRPO(env='CartPole-v1', exp_name='other').best


def test_its_transitions_are_those_of_offline_learning():
    keys = dict(env_kwargs=dict(max_episode_steps=20), stop_value=1e9)
    agent = GRPO(env='CartPole-v1', exp_name='run', group_size=2, groups=2, **keys)
    path = agent.collect_data(n_sample=400)
    assert path == 'run/demo_data_demos.hdf5'
    with h5py.File(path) as f:
        data = {name: torch.as_tensor(f[name][:]) for name in ('obs', 'action', 'reward', 'done', 'next_obs')}
    steps = len(data['obs'])
    assert steps >= 400 and data['reward'].shape == (steps, 1) and data['action'].shape == (steps, )
    follows = (data['next_obs'][:-1] == data['obs'][1:]).all(1)  # elsewhere another episode begins
    assert (~follows).sum() + 1 >= 400 // 20 and not (follows & data['done'][:-1]).any()
    cut = ~follows & ~data['done'][:-1]  # by the time limit, which does not end the task
    fallen = data['next_obs'][:-1][~follows & data['done'][:-1]]
    assert cut.any() and len(fallen) and (fallen[:, 2].abs() > 0.209).all()  # the angle at which CartPole ends
    with pytest.raises(ConfigError, match='needs one of n_sample and n_episode'):
        agent.collect_data()


def test_completions_of_a_language_model():
    agent = small(reward=[right, short])
    with open(agent.collect_data(n_episode=20, save_data_path='texts/data'), encoding='utf-8') as f:
        rows = [json.loads(line, parse_constant=pytest.fail) for line in f]
    assert len(rows) == 32 and [row['prompt'] for row in rows[:4]] == [rows[0]['prompt']] * 4  # two collects of 16
    assert all(row['reward'] == row['right'] + (row['short'] or 0) and len(row['completion']) <= 2 for row in rows)
    assert {row['short'] for row in rows} == {None, 1.0}  # None where it does not apply, which JSON has
    with pytest.raises(ConfigError, match='out.mp4 is not written; the environment makes no videos'):
        agent.deploy(video='out.mp4')
