"""What a task is examined for before a run, in parts that follow each other."""
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ding.utils import ENV_REGISTRY
from easydict import EasyDict

from ding_common import ConfigError


class Part(NamedTuple):
    """A part of the examination: what was looked at, and what is wrong: ``cause``, ``message`` and figures."""
    name: str
    lines: List[str]
    findings: List[Dict[str, Any]]
    form: Optional[str] = None  # of right completions, if they are worth more than wrong ones
    reward: float = 0.0  # of a right completion
    seconds: float = 0.0  # of a score
    examined: bool = True


def examined(main_config: EasyDict, create_config: EasyDict, tokens: bool, scores: bool = True) -> Iterator[Part]:
    """Examine the task of a config: its prompts only if ``env.tokenizer`` is that of the run (``tokens``), its reward
    only if ``scores``. Yields each part as soon as it is known."""
    kind = create_config.env.type
    examine = getattr(ENV_REGISTRY.get(kind), 'examine', None)
    if examine is None:
        raise ConfigError(f'create_config.env.type = {kind!r}: must be token_env. Use --check for other environments.')
    for name, found in examine(main_config.env, tokens, scores):
        yield Part(name, *found)
