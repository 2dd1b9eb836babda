"""What becomes of prompts and answers as tokens: their length, and what a chat template leaves out."""
import statistics
from typing import Any, Dict, List

from ding_common import MOST as LARGEST
from ding_common import ConfigError, TaskError
from dizoo_llm.base import Task
from dizoo_llm.text.encoder import Encoder

from .finding import Finding, Found, finding, share

MOST, READ = 2000, 200  # prompts that are encoded and that are decoded again, spread over all


def of_prompts(task: Task, options: Dict[str, Any]) -> Found:
    """
    Overview:
        Encode prompts and demonstrations as a run does.
    Arguments:
        - options (:obj:`Dict[str, Any]`): All keys of the section ``env``, see ``ENV_OPTIONS``.
    """
    indices = range(0, len(task), max(1, -(-len(task) // MOST)))
    problems = {i: task.checked_problem(i) for i in indices}
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


def _too_long(ids: Dict[int, List[int]], limit: Any) -> List[Finding]:
    long = [i for i, tokens in ids.items() if limit is not None and len(tokens) > limit]
    if not long:
        return []
    most = max(map(len, ids.values()))
    return [
        finding(
            'prompt_too_long', f'{share(len(long), len(ids))} prompts have more than env.max_prompt_length = {limit} '
            f'tokens, the longest {most}. Raise it, or drop them: env.overlong_prompts=\'drop\'',
            problems=long[:20]
        )
    ]


def _lost(encoder: Encoder, problems: Dict, ids: Dict[int, List[int]], system_prompt: Any) -> List[Finding]:
    """Messages whose text is not in the prompt as the policy reads it."""
    for i in list(problems)[::max(1, len(problems) // READ)]:
        problem, read = problems[i], _plain(encoder.decode(ids[i]))
        messages = problem.messages if system_prompt is None else [
            dict(role='system', content=system_prompt), *problem.messages
        ]
        for message in messages:
            if _plain(message['content']) not in read:
                return [
                    finding(
                        'template_loses', f"the policy does not read the {message['role']} message "
                        f"{message['content']!r:.80} of problem {i} as it is written: the chat template or the "
                        'tokenizer drops or rewrites it',
                        problem=i,
                        role=message['role']
                    )
                ]
    return []


def _plain(text: str) -> str:
    return ' '.join(text.split())


def _cut(encoder: Encoder, task: Task, problems: Dict, limit: int) -> List[Finding]:
    long, failed = [], []
    for i, problem in problems.items():
        try:
            if len(encoder.answer(task.demonstration(problem))) > limit:
                long.append(i)
        except (ConfigError, TaskError) as error:
            failed.append(error.message)
    if failed:
        told = f'{share(len(failed), len(problems))} right completions cannot be encoded: {failed[0]:.300}'
        return [finding('not_encoded', told)]
    if not long:
        return []
    return [
        finding(
            'cut', f'{share(len(long), len(problems))} right completions have more than env.max_new_tokens = {limit} '
            'tokens, so the policy cannot write them. Raise it',
            problems=long[:20]
        )
    ]
