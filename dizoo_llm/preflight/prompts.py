"""What becomes of prompts and answers as tokens: their length, and what a chat template leaves out."""
import statistics
from typing import Any, Dict, Iterator, List, Optional

from ding_common import MOST as LARGEST
from ding_common import ConfigError, TaskError
from dizoo_llm.base import Task
from dizoo_llm.text.chat import conversation
from dizoo_llm.text.encoder import Encoder

from .finding import Finding, Found, finding, share

MOST, READ = 2000, 200  # prompts that are encoded and that are decoded again, spread over all


def of_prompts(task: Task, options: Dict[str, Any]) -> Found:
    """Encode prompts and demonstrations as a run does. ``options``: all keys of the section ``env``."""
    problems = {i: task.checked_problem(i) for i in range(0, len(task), max(1, -(-len(task) // MOST)))}
    try:
        encoder = Encoder(task, dict(options, max_prompt_length=None, max_new_tokens=LARGEST))
        ids = dict(zip(problems, encoder.prompts(list(problems.values()))))
    except (ConfigError, TaskError) as error:
        return Found([], [finding('not_encoded', error.message)])
    lengths = list(map(len, ids.values()))
    line = f'prompts have {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}'
    findings = [*_too_long(ids, options['max_prompt_length']), *_lost(encoder, problems, ids, options['system_prompt'])]
    if task.demonstrates:
        findings += _cut(encoder, task, problems, options['max_new_tokens'])
    return Found([line], findings)


def _too_long(ids: Dict[int, List[int]], limit: Optional[int]) -> Iterator[Finding]:
    long = [i for i, tokens in ids.items() if limit is not None and len(tokens) > limit]
    if long:
        yield finding(
            'prompt_too_long', f'{share(len(long), len(ids))} prompts have more than env.max_prompt_length = {limit} '
            f"tokens, the longest {max(map(len, ids.values()))}. Raise it, or drop them: env.overlong_prompts='drop'",
            problems=long[:20]
        )


def _lost(encoder: Encoder, problems: Dict, ids: Dict[int, List[int]], system: Optional[str]) -> Iterator[Finding]:
    """The first message whose text is not in the prompt as the policy reads it."""
    for i in list(problems)[::max(1, len(problems) // READ)]:
        read = _plain(encoder.decode(ids[i]))
        for message in conversation(problems[i].prompt, system):
            if _plain(message['content']) not in read:
                yield finding(
                    'template_loses', f"the policy does not read the {message['role']} message "
                    f"{message['content']!r:.80} of problem {i} as it is written: the chat template or the tokenizer "
                    'drops or rewrites it',
                    problem=i,
                    role=message['role']
                )
                return


def _plain(text: str) -> str:
    return ' '.join(text.split())


def _cut(encoder: Encoder, task: Task, problems: Dict, limit: int) -> Iterator[Finding]:
    long, failed = [], []
    for i, problem in problems.items():
        try:
            if len(encoder.answer(task.demonstration(problem))) > limit:
                long.append(i)
        except (ConfigError, TaskError) as error:
            failed.append(error.message)
    if failed:
        told = f'{share(len(failed), len(problems))} right completions cannot be encoded: {failed[0]:.300}'
        yield finding('not_encoded', told)
    elif long:
        yield finding(
            'cut', f'{share(len(long), len(problems))} right completions have more than env.max_new_tokens = {limit} '
            'tokens, so the policy cannot write them. Raise it',
            problems=long[:20]
        )
