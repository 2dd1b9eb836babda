"""
Prompt a trained model: ``python -m dizoo_llm.play FOLDER 'PROMPT'``, with ``--config FILE`` in the chat of that config,
and with ``--tree 2,2`` for several answers that share their beginnings.
With ``--task NAME``, or ``--config FILE`` alone, it answers the task's evaluation problems instead; episodes of several
turns are shown as dialogues.
"""
from typing import Any, Dict, List, Optional, Tuple

import click
import torch
from tabulate import tabulate
from transformers import PreTrainedModel

from ding_common import ConfigError, ConfigFile, Rule, echo, printable, run_file
from ding_common.hub.language_model import build_causal_lm

from .envs import TokenEnv
from .envs.options import ENV_OPTIONS
from .envs.token_env import create_env
from .models import generation
from .models.completion_tree import CompletionTree, lines
from .text.tokenizer import load_tokenizer

MOST_ASKED = 32_768  # tokens that a folder may ask for
LONGEST = 512  # tokens, if neither the option nor the folder nor the config sets a limit


def _branches(context: click.Context, option: click.Option, text: Optional[str]) -> List[int]:
    numbers = [] if text is None else [int(x) if x.strip().isdecimal() else 0 for x in text.split(',')]
    if 0 in numbers:
        raise click.BadParameter(f'{text!r} must be numbers of branches, as 2,2')
    return numbers


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.argument('folder', type=click.Path(exists=True, file_okay=False))
@click.argument('prompt', required=False)
@click.option('--task', help='Answer the problems of this registered task and score them.')
@click.option(
    '--config',
    type=ConfigFile(),
    help='Config (path or name) whose env section has the task, and chat, system_prompt and chat_options for PROMPT.'
)
@click.option('--problems', default=20, show_default=True, type=click.IntRange(1), help='Maximum number of problems.')
@click.option('--import', 'modules', multiple=True, help='Module that registers the task; may be given several times.')
@click.option('--max-new-tokens', type=click.IntRange(1), help="Length limit; default is the config's or the folder's.")
@click.option('--temperature', type=click.FloatRange(0), default=0., help='0, the default, is greedy decoding.')
@click.option(
    '--tree', callback=_branches, help='Several completions that divide, as 2,2: two, each into two further on.'
)
@click.option(
    '--above', type=click.FloatRange(0), help='With --tree, least entropy in nats where they divide; default is 1.'
)
@click.option('--seed', type=int, default=0, help='Random seed for a temperature above 0.')
def main(
        folder: str, prompt: Optional[str], task: Optional[str], config: Optional[str], problems: int,
        modules: Tuple[str, ...], max_new_tokens: Optional[int], temperature: float, tree: List[int],
        above: Optional[float], seed: int
) -> None:
    """Prompt the model in FOLDER with PROMPT, with each line of the standard input, or with a task's problems."""
    if task is not None and (prompt is not None or config is not None):
        raise click.UsageError('give --task alone, without PROMPT and --config')
    answers = task is not None or config is not None and prompt is None
    if tree and (answers or temperature == 0):
        raise click.UsageError('--tree needs a PROMPT and a --temperature above 0, such as 1')
    if above is not None and not tree:
        raise click.UsageError('--above needs --tree')
    tokenizer = load_tokenizer(folder)
    model = build_causal_lm(folder, None, None, None, 'FOLDER')
    torch.manual_seed(seed)
    env = dict(task=dict(type=task, import_names=list(modules))) if config is None else _env_of(config)
    longest = max_new_tokens or env.get('max_new_tokens') or _limit_of(model, folder)
    if answers:
        env.update(tokenizer=dict(pretrained=folder), max_new_tokens=longest, evaluation=True, overlong_buffer=None)
        _answer_all(model, create_env(**env), problems, temperature)
        return

    chat = {key: env[key] for key in ('chat', 'system_prompt', 'chat_options') if key in env}

    def complete(text: str) -> str:
        if tree:
            ids, = generation.encoded(tokenizer, [text], chat)
            grown = CompletionTree(model, tokenizer, tree, 1. if above is None else above, longest, temperature)
            return '\n'.join(lines(grown.grow(ids)))
        return generation.complete(model, tokenizer, [text], chat, longest, temperature)[0]

    if prompt is not None:
        echo(complete(prompt))
    else:
        for line in click.get_text_stream('stdin'):
            if line.strip():
                echo(complete(line.strip()))


def _limit_of(model: PreTrainedModel, folder: str) -> int:
    """The length limit of a folder."""
    limit, rule = model.generation_config.max_new_tokens, Rule.integer(1, MOST_ASKED)
    if limit is not None and not rule.holds(limit):
        raise ConfigError(
            f'FOLDER = {folder!r}: max_new_tokens = {limit!r:.200} in generation_config.json: must be {rule.allowed}. '
            'Set --max-new-tokens.'
        )
    return limit or LONGEST


def _env_of(config: str) -> Dict[str, Any]:
    """The keys of the ``env`` section that ``TokenEnv`` accepts."""
    main_config = run_file(config, '--config').get('main_config')
    if not isinstance(main_config, dict) or not isinstance(main_config.get('env'), dict):
        raise click.UsageError(f'{config}: must define a dict main_config with a section env')
    return {key: value for key, value in main_config['env'].items() if key in ENV_OPTIONS}


def _answer_all(model: PreTrainedModel, env: TokenEnv, problems: int, temperature: float) -> None:
    rows, values = [], []
    for index in range(min(problems, len(env.problems))):
        (played, info), = generation.episodes(model, env, [index], temperature)
        if info['failed'] is None:
            values.append(info['return'])
        if 'turns' in info:
            echo(_dialogue(info))
            continue
        parts = ('-' if value is None else f'{value:.2f}' for value in info['reward_parts'].values())
        told = info['completion'] if info['failed'] is None else f"{info['completion']}  (failed: {info['failed']:.80})"
        texts = (info['prompt'][-40:], told, played.problem.answer)
        rows.append([*(printable(text).replace('\n', '\\n') for text in texts), *parts])
    if rows:
        echo(tabulate(rows, ['prompt', 'completion', 'expected', *env.weights], disable_numparse=True))
    mean = f'{sum(values) / len(values):.3f}' if values else 'none'
    failed = min(problems, len(env.problems)) - len(values)
    left_out = f'; {failed} could not be scored' if failed else ''
    echo(f'mean of {env.token_spec.return_name}: {mean} in {len(values)} problems{left_out}')


def _dialogue(info: Dict[str, Any]) -> str:
    """An episode of several turns, a line for each text."""
    lines = [f"problem {info['index']}: {info['prompt']}"]
    if info.get('request') is not None:  # an agent writes its prompts itself
        lines.append(f"  request: {info['request']}")
    for turn in info['turns']:
        of = f", text {turn['trajectory'] + 1}" if turn.get('trajectory') else ''
        lines.append(f"  model{of}: {turn['text']}{' (cut)' * turn['cut']}")
        lines.append(f"  reply: {turn['reply']}  (reward {turn['reward']:.2f})")
    end = 'truncated' if info['truncated'] else 'ended'
    lines.append(
        f"  {end}, return {info['return']:.2f}" + (f"  (failed: {info['failed']:.80})" if info['failed'] else '')
    )
    return '\n'.join(lines)


if __name__ == '__main__':
    main()
