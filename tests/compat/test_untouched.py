"""What importing the plugin changes of DI-engine: the names below, and not a bit of how its own policies train."""
import pytest

from tests.cases import long
from tests.processes import python

REPLACED = [
    'ding.entry.application_entry.InteractionSerialEvaluator',
    'ding.entry.application_entry.eval',
    'ding.entry.eval',
    'ding.entry.serial_entry.serial_pipeline',
    'ding.entry.serial_entry_onpolicy.serial_pipeline_onpolicy',
    'ding.entry.serial_pipeline',
    'ding.entry.serial_pipeline_onpolicy',
]
# Trains configs of DI-engine before and after the import, in a process of its own, and prints what the import replaced.
PROGRAM = '''
import gc, hashlib, os, sys
from importlib import import_module
import ding, ding.entry, ding.entry.cli, ding.worker, ding.policy, ding.envs, ding.rl_utils, ding.config
import gymnasium, torch, transformers

torch.set_num_threads(1)


def trained(name):
    """A hash of the weights."""
    config = import_module(f'dizoo.classic_control.{name}_config')
    main, create = config.main_config, config.create_config
    main.exp_name, main.policy.eval.evaluator.eval_freq = f'run_{len(name)}', 2
    main.env.update(collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2, stop_value=1e9, replay_path=None)
    main.policy.learn.batch_size, main.policy.collect.n_sample = 32, 64
    pipeline = ding.entry.serial_pipeline if 'dqn' in name else ding.entry.serial_pipeline_onpolicy
    weights = pipeline((main, create), seed=0, max_train_iter=12)._model.state_dict()
    return hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest()


def names():
    found = {}
    for module in [m for name, m in sys.modules.items() if name.split('.')[0] in ('ding', 'ditk') and m is not None]:
        for name, value in list(vars(module).items()):
            found[f'{module.__name__}.{name}'] = value
            if isinstance(value, type) and value.__module__.split('.')[0] in ('ding', 'ditk'):
                for key, member in list(vars(value).items()):
                    found[f'{value.__module__}.{value.__qualname__}.{key}'] = member
    return found


def of_process():
    of_torch = 'TORCHINDUCTOR_CACHE_DIR'
    return {k: v for k, v in os.environ.items() if k != of_torch}, gc.get_freeze_count(), sys.excepthook


without = [trained(name) for name in sys.argv[1:]]
before, process, modules = names(), of_process(), set(sys.modules)
import ding_grpo
import ding_grpo.policy
assert of_process() == process
assert not [name for name in set(sys.modules) - modules if name.startswith('ding.')
            and not getattr(sys.modules[name], '__file__', '').endswith('.py')]
after = names()
print('REPLACED', *sorted(name for name in before if after[name] is not before[name]))
assert 'ding_grpo' in ding.entry.serial_pipeline.__module__
print('SAME', without == [trained(name) for name in sys.argv[1:]], len(set(without)))
'''


@pytest.mark.envtest
@pytest.mark.parametrize(
    'names', [
        ['cartpole.config.cartpole_ppo'],
        long(['pendulum.config.pendulum_ppo', 'cartpole.config.cartpole_dqn']),
    ]
)
def test_seven_names_of_di_engine_and_nothing_of_the_process_or_of_how_others_train(tmp_path, names):
    run = python('-c', PROGRAM, *names, folder=tmp_path, OMP_NUM_THREADS='1')
    assert run.returncode == 0, run.stderr
    lines = dict(line.partition(' ')[::2] for line in run.stdout.splitlines() if line.startswith(('REPLACED', 'SAME')))
    assert lines == dict(REPLACED=' '.join(REPLACED), SAME=f'True {len(names)}')
