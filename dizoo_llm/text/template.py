"""
Chat templates in a process of their own. A template is a program of whoever made the tokenizer: it may loop without end
or fill the memory, even while it is compiled. That process returns the texts of chats; all else that
``apply_chat_template`` does is done here, so that its tokens are those of ``transformers``.
"""
import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Dict, List

from transformers import PreTrainedTokenizerBase, tokenization_utils_base

from ding_common import ConfigError, config_errors
from dizoo_llm.servers import Raised, Servers

from .tokenizer import ENCODING

AT_ONCE = 16  # chats that are rendered by one question
_KINDS = {bool: bool, str: str.__str__, int: int.__int__, float: float.__float__}
SERVERS = Servers('its chat template', 'templates', 'transformers is not installed')


class TemplateFailure(ConfigError):
    """A template that raised an error, whose type and message are ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'env.tokenizer: its chat template fails: {reason:.300}')
        self.reason = reason


def apply(
        tokenizer: PreTrainedTokenizerBase,
        chats: List[List[Dict[str, Any]]],
        tokenize: bool,
        generates: bool,
        options: Dict[str, Any],
        sanitized: bool = False
) -> List[Any]:
    """
    What ``apply_chat_template`` returns for each chat, token ids or text. ``generates`` appends what precedes an
    answer; ``sanitized`` makes names of special tokens in the messages ordinary tokens.
    """
    arguments = dict(options, tokenize=tokenize, add_generation_prompt=generates, return_dict=False)
    if sanitized:
        arguments['sanitize_control_tokens'] = True
    rows: List[Any] = []
    with ENCODING:  # also held while anybody forks
        own = {name: getattr(tokenization_utils_base, name) for name in _REPLACED}
        vars(tokenization_utils_base).update(_REPLACED)
        try:
            for first in range(0, len(chats), AT_ONCE):
                rows += tokenizer.apply_chat_template(chats[first:first + AT_ONCE], **arguments)
        except (ConfigError, OSError):  # the latter of a signal, such as a TimeoutError
            raise
        except Exception as error:  # a tokenizer may raise anything for a text
            raise TemplateFailure(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        finally:
            vars(tokenization_utils_base).update(own)
    return rows


def variables(tokenizer: PreTrainedTokenizerBase, options: Dict[str, Any]) -> List[str]:
    """Names of the variables that a chat template reads and does not set itself; with tools it may be another."""
    try:
        template = tokenizer.get_chat_template(tools=options.get('tools'))
    except ValueError as error:  # several templates, and none is the default
        raise TemplateFailure(f'ValueError: {error}') from error
    return _ask(template, 'variables', template)


def _ask(about: Any, *question: Any) -> Any:
    try:
        found, = SERVERS.ask([question], [about])
    except (ImportError, RuntimeError) as error:
        raise ConfigError(f'env.tokenizer: no process for its chat template can be started ({error}).') from error
    if isinstance(found, Raised):
        raise TemplateFailure(found.reason)
    if isinstance(found, Exception):
        raise ConfigError(f'env.tokenizer: {found}.') from found
    return found


def _render(**arguments: Any) -> Any:
    """``transformers``' function of this name."""
    told = 'env.chat_options: what a chat template reads must be made of texts, numbers, lists and dicts'
    with config_errors(told, '.'):
        packed = pickle.dumps(_plain(arguments))
    return _ask(arguments['conversations'][0], 'render', packed)


def _plain(value: Any) -> Any:
    """A value without classes of the user's, which the process may be unable to import, and which no template needs."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    return next((make(value) for kind, make in _KINDS.items() if isinstance(value, kind)), value)


# Both run a template: to render it, and to find the names of tokens that it writes.
_REPLACED = dict(
    render_jinja_template=_render,
    _get_template_literal_text=lru_cache(maxsize=8)(lambda template: _ask(template, 'literal_text', template)),
)
