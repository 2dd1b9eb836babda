"""Prompt a trained model: ``python -m dizoo_llm.play FOLDER 'PROMPT'``, or ``--task NAME`` for a task's problems."""
from typing import Optional, Tuple

import click
import torch
from tabulate import tabulate
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dizoo_llm.tasks import Task, create_task
from dizoo_llm.tokenizer import load_tokenizer


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, **options) -> str:
    """
    Overview:
        Continue a prompt with plain ``generate``.
    Arguments:
        - model (:obj:`PreTrainedModel`): A causal language model.
        - tokenizer (:obj:`PreTrainedTokenizerBase`): Its tokenizer.
        - prompt (:obj:`str`): Text.
        - options: As ``generate`` takes them; what is not given is the folder's default.
    Returns:
        - completion (:obj:`str`): What the model added, without the end-of-sequence token.
    """
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])  # (1, L)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1]:].tolist()
    if out and out[-1] == tokenizer.eos_token_id:
        out = out[:-1]
    return tokenizer.decode(out, skip_special_tokens=False)


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.argument('folder', type=click.Path(exists=True, file_okay=False))
@click.argument('prompt', required=False)
@click.option('--task', help='Answer all problems of this registered task and score them.')
@click.option('--import', 'modules', multiple=True, help='Module that registers the task; may be given several times.')
@click.option('--max-new-tokens', type=click.IntRange(1), help="Length limit; default is the folder's.")
@click.option('--temperature', type=click.FloatRange(0), default=0., help='0, the default, takes the likeliest token.')
@click.option('--seed', type=int, default=0, help='For a temperature above 0.')
def main(
        folder: str, prompt: Optional[str], task: Optional[str], modules: Tuple[str, ...],
        max_new_tokens: Optional[int], temperature: float, seed: int
) -> None:
    """Prompt the model in FOLDER with PROMPT, with each line typed in, or with a task's problems."""
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    options = dict(do_sample=True, temperature=temperature) if temperature > 0 else dict(do_sample=False)
    if max_new_tokens is not None:
        options['max_new_tokens'] = max_new_tokens
    if task is not None:
        _answer_all(model, tokenizer, create_task(dict(type=task, import_names=modules)), options)
    elif prompt is not None:
        click.echo(complete(model, tokenizer, prompt, **options))
    else:
        for line in click.get_text_stream('stdin'):
            if line.strip():
                click.echo(complete(model, tokenizer, line.strip(), **options))


def _answer_all(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, options: dict) -> None:
    rows = []
    for index in range(len(task)):
        problem = task.problem(index)
        completion = complete(model, tokenizer, problem.prompt, **options)
        parts = task.checked_score(problem, completion)
        rows.append([problem.prompt[-40:], completion, problem.answer, *(f'{value:.2f}' for value in parts.values())])
    click.echo(tabulate(rows, ['prompt', 'completion', 'expected', *task.weights], disable_numparse=True))


if __name__ == '__main__':
    main()
