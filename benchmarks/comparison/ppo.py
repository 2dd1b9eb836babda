"""
DI-engine's own PPO on a gymnasium environment, in a process that never imports this project's packages:
``python -m benchmarks.comparison.ppo JOB.json``. Policy, collector, learner, environment wrapper and network are
DI-engine's.
"""
import inspect
import sys

from ding.envs import DingEnvWrapper
from ding.policy import PPOPolicy
from easydict import EasyDict

from benchmarks.comparison.loop import build, greedy_episodes, load, read_job, train, wrapped_envs, write_result

PLUGIN = ('ding_grpo', 'ding_common', 'dizoo_llm')


def check_untouched() -> None:
    """Fail if a package of this project was imported, or a method of DI-engine's PPO was replaced."""
    imported = sorted(name for name in sys.modules if name.split('.')[0] in PLUGIN)
    assert not imported, f'imported: {imported}'
    methods = {name: f for name, f in vars(PPOPolicy).items() if inspect.isfunction(f)}
    replaced = [
        name for name, f in methods.items()
        if f.__module__ != 'ding.policy.ppo' or f.__qualname__ != f'PPOPolicy.{name}' or hasattr(f, '__wrapped__')
    ]
    assert methods and not replaced, f'replaced: {replaced}'


def main(path: str) -> None:
    job = read_job(path)
    main_config, create_config = load(job)
    create_config.env = EasyDict(type='ding_env_wrapper_generated')  # the shipped config names the plugin's
    parts = build(job, (main_config, create_config), wrapped_envs, DingEnvWrapper)
    result = train(job, parts, greedy_episodes(main_config.env, parts.policy.eval_mode, job['episodes']))
    check_untouched()
    write_result(job, result)


if __name__ == '__main__':
    main(sys.argv[1])
