"""DI-engine's own policies train as without this plugin, bit for bit."""
import pytest

from tests.cases import long
from tests.processes import Process, python, run_code

# Runs in a process of its own, with the plugin or without it; prints a hash of the trained weights of each config.
PROGRAM = '''
import hashlib, sys
from importlib import import_module
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

torch.set_num_threads(1)
for name in sys.argv[1:]:
    config = import_module(f'dizoo.classic_control.{name}_config')
    main, create = config.main_config, config.create_config
    main.exp_name, main.policy.eval.evaluator.eval_freq = f'run_{len(name)}', 2
    main.env.update(collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2, stop_value=1e9, replay_path=None)
    main.policy.learn.batch_size, main.policy.collect.n_sample = 32, 64
    pipeline = serial_pipeline if 'dqn' in name else serial_pipeline_onpolicy
    weights = pipeline((main, create), seed=0, max_train_iter=12)._model.state_dict()
    print('HASH', name, hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())
'''


@pytest.mark.envtest
@pytest.mark.parametrize(
    'names', [
        ['cartpole.config.cartpole_ppo'],
        long(['pendulum.config.pendulum_ppo', 'cartpole.config.cartpole_dqn']),
    ]
)
def test_importing_the_plugin_does_not_change_how_others_train(tmp_path, names):
    without = python('-c', PROGRAM, *names, folder=tmp_path, OMP_NUM_THREADS='1')
    program = f'import sys, ding_grpo; sys.argv = {["", *names]}\n{PROGRAM}'
    code, out = Process(run_code, program, tmp_path / 'with').end(300)
    found = [[line for line in of_one.splitlines() if line.startswith('HASH')] for of_one in (without.stdout, out)]
    assert code == 0 and len(found[0]) == len(names), out[-2000:] + without.stdout[-2000:] + without.stderr[-2000:]
    assert found[0] == found[1]
