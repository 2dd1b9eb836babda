"""
Prompt a trained model: ``python -m dizoo_llm.play FOLDER 'PROMPT'``; ``--task NAME`` or ``--config FILE`` for the
problems of a task, those held out for evaluation.
"""
import runpy
from typing import Dict, List, Optional, Tuple, Union

import click
import torch
from tabulate import tabulate
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dizoo_llm.tasks import Task, create_task
from dizoo_llm.tokenizer import encode_prompt, end_ids, load_tokenizer

Prompt = Union[str, List[Dict[str, str]]]


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, **options) -> str:
    """
    Overview:
        Continue a prompt with plain ``generate``.
    Arguments:
        - model (:obj:`PreTrainedModel`): A causal language model.
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Its tokenizer.
        - prompt (:obj:`Union[str, List[Dict[str, str]]]`): Text, or chat messages.
        - options: As ``generate`` takes them; what is not given is the folder's default.
    Returns:
        - completion (:obj:`str`): What the model added, without the end-of-sequence token.
    """
    ids = torch.tensor([encode_prompt(tokenizer, prompt)])  # (1, L)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1]:].tolist()
    if out and out[-1] in end_ids(tokenizer):
        out = out[:-1]
    return tokenizer.decode(out, skip_special_tokens=False)


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.argument('folder', type=click.Path(exists=True, file_okay=False))
@click.argument('prompt', required=False)
@click.option('--task', help='Answer the problems of this registered task and score them.')
@click.option(
    '--config', type=click.Path(exists=True, dir_okay=False), help='The same of the task in this config file.'
)
@click.option('--problems', default=20, show_default=True, type=click.IntRange(1), help='How many of them at most.')
@click.option('--import', 'modules', multiple=True, help='Module that registers the task; may be given several times.')
@click.option('--max-new-tokens', type=click.IntRange(1), help="Length limit; default is the folder's.")
@click.option('--temperature', type=click.FloatRange(0), default=0., help='0, the default, takes the likeliest token.')
@click.option('--seed', type=int, default=0, help='For a temperature above 0.')
def main(
        folder: str, prompt: Optional[str], task: Optional[str], config: Optional[str], problems: int,
        modules: Tuple[str, ...], max_new_tokens: Optional[int], temperature: float, seed: int
) -> None:
    """Prompt the model in FOLDER with PROMPT, with each line typed in, or with a task's problems."""
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    options = dict(do_sample=True, temperature=temperature) if temperature > 0 else dict(do_sample=False)
    if max_new_tokens is not None:
        options['max_new_tokens'] = max_new_tokens
    if task is not None or config is not None:
        cfg = dict(
            type=task, import_names=modules
        ) if config is None else runpy.run_path(config)['main_config'].env.task
        _answer_all(model, tokenizer, create_task(cfg).evaluation(), problems, options)
    elif prompt is not None:
        click.echo(complete(model, tokenizer, prompt, **options))
    else:
        for line in click.get_text_stream('stdin'):
            if line.strip():
                click.echo(complete(model, tokenizer, line.strip(), **options))


def _answer_all(
        model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, problems: int, options: dict
) -> None:
    rows = []
    for index in range(min(problems, len(task))):
        problem = task.checked_problem(index)
        completion = complete(model, tokenizer, problem.prompt, **options)
        parts = task.checked_score(problem, completion)
        values = ('-' if value is None else f'{value:.2f}' for value in parts.values())
        rows.append([problem.text[-40:], completion, problem.answer, *values])
    click.echo(tabulate(rows, ['prompt', 'completion', 'expected', *task.weights], disable_numparse=True))


if __name__ == '__main__':
    main()
