"""``policy.collect.engine``: its keys, and what an engine cannot sample exactly."""
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ding_common import ConfigError, Rule, check_config
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
    collect = cfg.collect
    if collect.autocast is not None:
        raise _refusal(f'autocast = {collect.autocast!r}', "Set it to None, and give the server's --dtype instead")
    others = [name for name in processor_arguments(collect.processors) if name != 'min_p']
    if others:
        raise _refusal(f'processors: {others[0]}', 'Remove it')
    narrow = dict(top_p=collect.top_p, processors=collect.processors)
    if collect.top_k is None:
        for key in (key for key, value in narrow.items() if value):
            raise _refusal(
                f'{key} = {narrow[key]!r}', 'Without top_k it does not tell which tokens it kept, which learning '
                'needs. Set policy.collect.top_k too, or remove it'
            )
    elif all(narrow.values()):
        raise _refusal('processors: min_p with top_p', 'It applies them in another order. Remove one')
    if cfg.model.get('quantize') is not None:
        raise ConfigError(
            f'policy.model.quantize = {cfg.model.quantize!r}: not available with {KEY}, whose base is another. Set '
            'it to None.'
        )
    if collect.extra_rows > 0 and collect.engine.get('record'):
        raise ConfigError(
            f'policy.collect.extra_rows = {collect.extra_rows}: not available with {KEY}.record = True, since rows '
            'that are ended are not recorded. Set it to 0.'
        )
    if cfg.multi_gpu and collect.engine.get('record'):
        raise ConfigError(f'{KEY}.record = True: not available with policy.multi_gpu = True. Set it to False.')
    if cfg.multi_gpu and cfg.collect.engine.get('launch') is not None:
        raise ConfigError(
            f'{KEY}.launch = {dict(cfg.collect.engine.launch)!r}: not available with policy.multi_gpu = True, whose '
            'processes share servers that run already. Start one, and set url.'
        )


def _refusal(what: str, way_out: str) -> ConfigError:
    return ConfigError(f'policy.collect.{what}: not available with {KEY}. {way_out}.')
