"""
Chat templates in a process of their own. A template is a program of whoever made the tokenizer: it may loop without end
or fill the memory, and Python cannot interrupt it in a thread. Every process that encodes has one, see ``ToolProcess``.
"""
import json
import os
import resource
from typing import Any, Dict, List

from transformers import PreTrainedTokenizerBase

from ding_common import ConfigError
from dizoo_llm.tasks.tool_process import ToolProcess
from dizoo_llm.tokenizer import ENCODING

SECONDS = 10.0  # of wall time for chats that are rendered together; they take milliseconds
MEMORY = 2 ** 31  # bytes
MOST_CHARS = 10_000_000  # of an answer
TOGETHER = 16  # chats that are rendered together
_NAME = 'its chat template'
_TOKENIZERS: Dict[str, PreTrainedTokenizerBase] = {}  # those that the process has
_MOST_TOKENIZERS = 8


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
    Overview:
        What ``apply_chat_template`` of a tokenizer returns.
    Arguments:
        - tokenizer (:obj:`PreTrainedTokenizerBase`): A tokenizer with a chat template.
        - chats (:obj:`List[List[Dict[str, Any]]]`): The messages of each chat.
        - tokenize (:obj:`bool`): Whether to return token ids rather than text.
        - generates (:obj:`bool`): Whether to append what precedes an answer.
        - options (:obj:`Dict[str, Any]`): Additional variables of the template.
        - sanitized (:obj:`bool`): Whether names of special tokens in the messages become ordinary tokens.
    Returns:
        - rendered (:obj:`List[Any]`): The token ids or the text of each chat.
    Raises:
        - ConfigError: If the template takes too long, or its result is too long; as ``TemplateFailure``, if it \
            raises an error.
    """
    key = f'{id(tokenizer)} {len(tokenizer)} {hash(str(tokenizer.chat_template))} {tokenizer.special_tokens_map}'
    arguments = dict(tokenize=tokenize, add_generation_prompt=generates, **options)
    if sanitized:
        arguments['sanitize_control_tokens'] = True
    rows: List[Any] = []
    with ENCODING:  # also held while anybody forks
        if key not in _TOKENIZERS:
            while len(_TOKENIZERS) >= _MOST_TOKENIZERS:
                _TOKENIZERS.pop(next(iter(_TOKENIZERS)))
            _TOKENIZERS[key] = tokenizer
            _PROCESS.close()
        for first in range(0, len(chats), TOGETHER):
            rows += _call(dict(key=key, chats=chats[first:first + TOGETHER], arguments=arguments))
    return rows


def _call(arguments: Dict[str, Any]) -> List[Any]:
    try:
        text, failed = _PROCESS.call(_NAME, arguments)
    except OSError as error:
        raise ConfigError(f'env.tokenizer: no process for {_NAME} can be started ({error.strerror}).') from error
    if failed and not text.startswith(f'error: {_NAME}'):
        raise TemplateFailure(text.removeprefix('error: '))
    if failed or len(text) == MOST_CHARS:
        told = text.removeprefix('error: ') if failed else f'{_NAME} makes a text of more than {MOST_CHARS} characters'
        raise ConfigError(f"env.tokenizer: {told}, for example for {arguments['chats'][0]!r:.200}.")
    return json.loads(text)


def _apply(key: str, chats: List[List[Dict[str, Any]]], arguments: Dict[str, Any]) -> str:
    """In the process."""
    limit, hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == hard and os.path.exists('/proc/self/statm'):
        with open('/proc/self/statm', encoding='ascii') as f:
            used = int(f.read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
        if hard == resource.RLIM_INFINITY or used + MEMORY < hard:
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    if arguments['tokenize']:
        arguments['return_dict'] = False
    return json.dumps(_TOKENIZERS[key].apply_chat_template(chats, **arguments))


_PROCESS = ToolProcess({_NAME: _apply}, SECONDS, MOST_CHARS)
