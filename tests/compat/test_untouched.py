"""DI-engine's own policies train as without this plugin, bit for bit."""
import pytest

from tests.cases import long
from tests.processes import python

# Runs in a process of its own, with the plugin or without; prints a hash of the trained weights of each.
PROGRAM = '''
import hashlib, sys
plugin, *algorithms = sys.argv[1:]
if plugin == 'with':
    import ding_grpo
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy
from easydict import EasyDict

torch.set_num_threads(1)


def trained(algorithm):
    continuous = algorithm == 'ppo_continuous'
    space = 'continuous' if continuous else 'discrete'
    sizes = dict(obs_shape=3, action_shape=1) if continuous else dict(obs_shape=4, action_shape=2)
    model = dict(sizes, encoder_hidden_size_list=[64])
    if algorithm == 'dqn':
        eps = dict(type='exp', start=0.95, end=0.1, decay=10000)
        other = dict(eps=eps, replay_buffer=dict(replay_buffer_size=1000))
        learn = dict(update_per_collect=2, batch_size=32)
        policy = dict(model=model, nstep=1, learn=learn, collect=dict(n_sample=32, unroll_len=1), other=other)
    else:
        policy = dict(
            action_space=space, model=dict(model, action_space=space),
            learn=dict(epoch_per_collect=2, batch_size=32), collect=dict(n_sample=64, unroll_len=1)
        )
    policy.update(cuda=False, eval=dict(evaluator=dict(eval_freq=2)))
    env = dict(collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2, stop_value=1e9)
    if continuous:
        env.update(act_scale=True)
        kind, module = 'pendulum', 'dizoo.classic_control.pendulum.envs.pendulum_env'
    else:
        kind, module = 'cartpole', 'dizoo.classic_control.cartpole.envs.cartpole_env'
    create = dict(
        env=dict(type=kind, import_names=[module]), env_manager=dict(type='base'),
        policy=dict(type=algorithm.partition('_')[0])
    )
    pipeline = serial_pipeline if algorithm == 'dqn' else serial_pipeline_onpolicy
    main = dict(exp_name=f'run_{plugin}_{algorithm}', env=env, policy=policy)
    return pipeline((EasyDict(main), EasyDict(create)), seed=0, max_train_iter=12)._model.state_dict()


for algorithm in algorithms:
    weights = trained(algorithm)
    print('HASH', algorithm, hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())
'''


@pytest.mark.envtest
@pytest.mark.parametrize('algorithms', [['ppo'], long(['ppo_continuous', 'dqn'])])
def test_importing_the_plugin_does_not_change_how_others_train(tmp_path, algorithms):
    found = []
    for plugin in ('with', 'without'):
        run = python('-c', PROGRAM, plugin, *algorithms, folder=tmp_path, OMP_NUM_THREADS='1')
        found.append([line.split() for line in run.stdout.splitlines() if line.startswith('HASH')])
        assert len(found[-1]) == len(algorithms), run.stdout[-2000:] + run.stderr[-2000:]
    assert found[0] == found[1]
