"""Check the ``env`` section of a config: the keys of DI-engine's pipelines, of env managers and of the environment."""
from typing import Any, Dict

from ding.envs import get_env_manager_cls
from ding.utils import ENV_MANAGER_REGISTRY

from ding_common.errors import ConfigError

from .check import MOST, Rule, check_config, nearest

OF_EVERY_ENV = dict(
    type='',
    import_names=[],
    cfg_type='',
    manager={},
    stop_value=0.,
    n_evaluator_episode=1,
    collector_env_num=1,
    evaluator_env_num=1,
    replay_path=None,
)
_RULES = dict(
    n_evaluator_episode=Rule.integer(1, MOST),
    collector_env_num=Rule.integer(1, MOST),
    evaluator_env_num=Rule.integer(1, MOST),
    import_names=Rule.modules(),
    stop_value=Rule.number(),
    replay_path=Rule('text', lambda v: isinstance(v, str)).or_none(),
)
_SECONDS = Rule.number(0, open_low=True)
_MANAGER_RULES = dict(
    import_names=Rule.modules(),
    episode_num=Rule.integer(1).or_inf(),
    max_retry=Rule.integer(1, MOST),
    retry_type=Rule.one_of('reset', 'renew'),
    auto_reset=Rule('True: the evaluator waits forever for an environment that is not reset', lambda v: v is True),
    step_timeout=Rule.integer(1, MOST).or_none(),  # for signal.alarm, which accepts only C integers
    reset_timeout=Rule.integer(1, MOST).or_none(),
    retry_waiting_time=Rule.number(0),
    context=Rule("'fork': other start methods lose the patches of this plugin", lambda v: v == 'fork'),
    wait_num=Rule.integer(1).or_inf(),
    step_wait_timeout=_SECONDS.or_none(),
    connect_timeout=_SECONDS,
)


def check_env_config(cfg: Dict, default: Dict, rules: Dict[str, Rule]) -> None:
    """Check the section against the keys that DI-engine reads, and those of the environment with their rules."""
    check_config(cfg, {**OF_EVERY_ENV, **default}, {**_RULES, **rules}, 'env')
    manager = cfg.get('manager', {})
    if 'type' in manager:
        kind = manager['type']
        if not Rule.registered(ENV_MANAGER_REGISTRY).holds(kind):
            raise ConfigError(f'env.manager.type = {kind!r}: unknown manager; {nearest(kind, ENV_MANAGER_REGISTRY)}')
        known = {**get_env_manager_cls(manager).default_config(), 'type': '', 'import_names': []}
        check_config(manager, known, _MANAGER_RULES, 'env.manager')


def pop_number(cfg: Dict, key: str) -> Any:
    """Remove ``collector_env_num`` or ``evaluator_env_num`` from the section and return it."""
    for needed in (key, 'n_evaluator_episode') if key == 'evaluator_env_num' else (key, ):
        if needed not in cfg:
            raise ConfigError(f'env.{needed}: missing; must be {_RULES[needed].allowed}.')
    number = cfg.pop(key)
    if key == 'evaluator_env_num' and cfg['n_evaluator_episode'] < number:
        raise ConfigError(
            f"env.n_evaluator_episode = {cfg['n_evaluator_episode']}: must be at least env.evaluator_env_num = "
            f'{number}, since each evaluator environment runs at least one episode.'
        )
    return number
