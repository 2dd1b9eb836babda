"""``policy.collect.engine``: its keys, and what an engine cannot sample exactly."""
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ding_common import ConfigError, Rule, check_config
from ding_grpo.config.key import Combination
from ding_grpo.config.sections.processors import processor_arguments

KEY = 'policy.collect.engine'


class Launch(NamedTuple):
    """A server that a run starts and ends."""
    python: str  # of the environment that has vLLM
    args: Tuple[str, ...] = ()  # of vLLM's server, after those that the run gives it
    env: Dict[str, str] = {}  # variables of its environment


class EngineOptions(NamedTuple):
    """``policy.collect.engine``."""
    url: Tuple[str, ...] = ()  # of servers that run already, among which groups are divided
    launch: Optional[Launch] = None  # a server that the run starts; this or ``url``
    folder: str = '/dev/shm'  # through which weights go; trainer and servers see it, and it is as large as them
    seconds: float = 600.0  # for the answer to one request
    patience: float = 300.0  # seconds to wait for a server that does not answer, or that begins
    record: bool = False  # whether to write the rows, so that updates can be made again: log/collector/rows

    @classmethod
    def of(cls, engine: Dict[str, Any]) -> 'EngineOptions':
        """From a config. Raises a ``ConfigError`` that names the key, its value and what is allowed."""
        url, launch = engine.get('url'), engine.get('launch')
        check_config(engine, dict(cls()._asdict(), type=None), _RULES, KEY)
        if (url is None) == (launch is None):
            raise ConfigError(
                f'{KEY} = {dict(engine)!r}: must have either url, of a server that runs, or launch, for a server that '
                "the run starts: launch=dict(python='.venv-vllm/bin/python')."
            )
        if launch is not None:
            check_config(launch, dict(python='', args=None, env=None), _LAUNCH_RULES, f'{KEY}.launch')
            if 'python' not in launch:
                raise ConfigError(f'{KEY}.launch.python: missing; must be the Python of an environment with vLLM.')
            launch = Launch(launch['python'], tuple(map(str, launch.get('args', ()))), dict(launch.get('env', {})))
        urls = [url] if isinstance(url, str) else url or ()
        rest = {key: value for key, value in engine.items() if key not in ('type', 'url', 'launch')}
        return cls(tuple(u.rstrip('/') for u in urls), launch, **rest)


def _is_url(url: Any) -> bool:
    return isinstance(url, str) and url.startswith(('http://', 'https://'))


_RULES = dict(
    url=Rule(
        "an address such as 'http://127.0.0.1:8000', or a list of them", lambda v: _is_url(v) or
        (isinstance(v, (list, tuple)) and len(v) > 0 and all(map(_is_url, v)) and len(set(v)) == len(v))
    ).or_none(),
    launch=Rule('a dict with the key python', lambda v: isinstance(v, dict)).or_none(),
    folder=Rule('the path of a folder', lambda v: isinstance(v, str) and v != ''),
    seconds=Rule.number(0, open_low=True),
    patience=Rule.number(0, open_low=True),
)
_LAUNCH_RULES = dict(
    args=Rule('a list of texts and numbers', lambda v: isinstance(v, (list, tuple)) and all(map(_is_word, v))),
    env=Rule('a dict of texts', lambda v: isinstance(v, dict) and all(isinstance(x, str) for x in v.values())),
)


def _is_word(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def check_sampling(cfg: Dict) -> None:
    """Raise a ``ConfigError`` for what an engine cannot do, or not exactly, in the section ``policy``."""
    policy, collect, engine = Combination(cfg, {}), cfg.collect, cfg.collect.engine or {}
    others = [name for name in processor_arguments(collect.processors) if name != 'min_p']
    recorded = engine.get('record', False)
    not_here, one_process = f'not available with {KEY}', 'not available with policy.multi_gpu = True'
    without_top_k = (
        f'{not_here}. Without top_k it does not tell which tokens it kept, which learning needs. Set '
        'policy.collect.top_k too, or remove it.'
    )
    for refused, key, why in (
        (collect.autocast is not None, 'collect.autocast',
         f"{not_here}. Set it to None, and give the server's --dtype instead."),
        (others, 'collect.processors', f"{', '.join(others)}: {not_here}. Remove it."),
        (collect.top_k is None and collect.top_p, 'collect.top_p', without_top_k),
        (collect.top_k is None and collect.processors, 'collect.processors', without_top_k),
        (collect.top_p and collect.processors, 'collect.processors',
         f'min_p with top_p: {not_here}. It applies them in another order. Remove one.'),
        (cfg.model.get('quantize'), 'model.quantize', f'{not_here}, whose base is another. Set it to None.'),
        (recorded and collect.extra_rows > 0, 'collect.extra_rows',
         f'{not_here}.record = True, since rows that are ended are not recorded. Set it to 0.'),
        (recorded and cfg.multi_gpu, 'collect.engine.record', f'{one_process}. Set it to False.'),
        (engine.get('launch') is not None and cfg.multi_gpu, 'collect.engine.launch',
         f'{one_process}, whose processes share servers that run already. Start one, and set url.'),
    ):
        if refused:
            raise policy.refusal(key, why)
