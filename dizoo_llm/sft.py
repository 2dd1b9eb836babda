"""
Warm start by supervised fine-tuning: ``python -m dizoo_llm.sft -c CONFIG -s SEED`` trains a model on a task's reference
answers with the ``Trainer`` of ``transformers``. A GRPO config loads the resulting folder as
``policy.model.pretrained`` and ``env.tokenizer.pretrained``.
"""
import os
import time
from typing import Any, Dict, List, Optional, Tuple

import click
import torch
from ding.utils import deep_merge_dicts, set_pkg_seed
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainingArguments

from ding_common import ConfigError, ConfigFile, Rule, append_json, check_config, read_main_config
from ding_common.hub.generation_config import saved_generation_config
from ding_common.hub.language_model import build_causal_lm

from .envs import Demonstrations, TokenEnv
from .envs.options import ENV_OPTIONS, ENV_RULES
from .models import training
from .models.generation import episodes

DEFAULT = dict(
    # (str) Output folder of the run; the model is saved in FOLDER/model.
    exp_name='runs/sft',
    # (dict) As in a GRPO config: task, tokenizer, max_new_tokens, max_prompt_length, chat, ...
    env=dict(),
    # (dict) As ``policy.model`` of a GRPO config: ``pretrained``, or ``config`` with ``model_type`` for random weights.
    model=dict(),
    train=dict(
        # (Optional[int]) Number of training problems to use. None uses new ones in every step.
        examples=1000,
        # (int) Index of the first of them. A later run can start where this one ended.
        first_example=0,
        # (Optional[str]) Python file whose ``answer(problem, index)`` returns a completion to train on instead of the
        # reference answer. Use it for demonstrations from another source.
        answers=None,
        # (int) Problems per step.
        batch_size=32,
        # (int) Total number of steps.
        max_steps=1000,
        # (Optional[float]) Time limit in seconds; training stops at this or at ``max_steps``, whichever comes first.
        max_seconds=None,
        # (float) Learning rate of AdamW.
        learning_rate=1e-3,
        # (str) Learning-rate schedule after the warm-up: constant_with_warmup, or linear or cosine, which reach 0 at
        # ``max_steps``.
        lr_scheduler='constant_with_warmup',
        # (int) Steps over which the learning rate rises from 0.
        warmup_steps=20,
        # (float) Weight decay.
        weight_decay=0.0,
        # (int) Steps between evaluations.
        eval_freq=100,
        # (int) Number of problems per evaluation.
        eval_problems=200,
    ),
)
RULES = {
    'train.examples': Rule.integer(1).or_none(),
    'train.answers': Rule('the path of a Python file', lambda v: isinstance(v, str) and os.path.isfile(v)).or_none(),
    'train.first_example': Rule.integer(0),
    'train.batch_size': Rule.integer(1),
    'train.max_steps': Rule.integer(1),
    'train.max_seconds': Rule.number(0, open_low=True).or_none(),
    'train.learning_rate': Rule.number(0, open_low=True),
    'train.lr_scheduler': Rule.one_of('constant_with_warmup', 'linear', 'cosine'),
    'train.warmup_steps': Rule.integer(0),
    'train.eval_freq': Rule.integer(1),
    'train.eval_problems': Rule.integer(1),
}


class Examples(Dataset):
    """``number`` demonstrations from problem ``first`` on. The labels mask all that is not the completion."""

    def __init__(self, env: TokenEnv, first: int, number: int, answers: Optional[str] = None) -> None:
        self._of_problem = Demonstrations(env, answers, 'main_config.')
        self._first, self._number = first, number
        self._of_problem.check(first % len(self._of_problem))

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Dict[str, List[int]]:
        return self._of_problem[(self._first + index) % len(self._of_problem)]


def collate(rows: List[Dict[str, List[int]]]) -> Dict[str, torch.Tensor]:
    """Pad rows on the right: ids and attention mask with 0, labels with -100."""

    def padded(rows: List[List[int]], fill: int) -> torch.Tensor:
        return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=fill)

    return dict(
        input_ids=padded([row['input_ids'] for row in rows], 0),
        attention_mask=padded([[1] * len(row['input_ids']) for row in rows], 0),
        labels=padded([row['labels'] for row in rows], -100),
    )


def evaluate(model: PreTrainedModel, env: TokenEnv, problems: int, batch_size: int = 64) -> float:
    """Mean return of the greedy answers to the first evaluation problems."""
    number, returns = min(problems, len(env.problems)), []
    for first in range(0, number, batch_size):
        indices = range(first, min(first + batch_size, number))
        returns += [info['return'] for _, info in episodes(model, env, indices)]
    return sum(returns) / len(returns)


class Report(training.Report):
    """Evaluates every ``eval_freq`` steps, prints one line each time, and stops training at ``max_seconds``."""

    def __init__(self, path: str, env: TokenEnv, cfg: Dict[str, Any]) -> None:
        super().__init__(path)
        self._env, self._cfg = env, cfg
        self._start, self._evaluating = time.monotonic(), 0.0
        self._losses: List[float] = []

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Dict = {}, **kwargs) -> None:
        if 'loss' in logs:
            self._losses.append(float(logs['loss']))

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs) -> None:
        if state.global_step % self._cfg['eval_freq'] == 0 or state.global_step == args.max_steps:
            self.evaluate(state.global_step, kwargs['model'])
        limit = self._cfg['max_seconds']
        if limit is not None and self._seconds() > limit:
            control.should_training_stop = True

    def _seconds(self) -> float:
        """Seconds of training, without evaluations."""
        return time.monotonic() - self._start - self._evaluating

    def evaluate(self, step: int, model: PreTrainedModel) -> None:
        seconds, begun = self._seconds(), time.monotonic()
        self.step, self.value = step, evaluate(model, self._env, self._cfg['eval_problems'])
        self._evaluating += time.monotonic() - begun
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses.clear()
        append_json(self.path, dict(step=step, seconds=seconds, loss=loss, eval_episode_return=self.value))
        shown = '' if loss is None else f'  loss {loss:.4f}'
        click.echo(f'step {step}{shown}  held-out return {self.value:.3f}  {seconds:.0f} s')


def train(main_config: Dict, seed: int) -> Tuple[str, float]:
    """Train and save a model by a config, see ``DEFAULT``. Returns its folder and its return in evaluation."""
    check_config(main_config, DEFAULT, RULES, 'main_config')
    cfg = deep_merge_dicts(DEFAULT, main_config)
    check_config(cfg['env'], ENV_OPTIONS, ENV_RULES, 'main_config.env')
    set_pkg_seed(seed, use_cuda=torch.cuda.is_available())
    env, held_out = TokenEnv(**cfg['env']), TokenEnv(evaluation=True, **cfg['env'])
    model = _model(cfg['model'], env)
    options, folder = cfg['train'], cfg['exp_name']
    path = os.path.join(folder, 'model')
    if os.path.realpath(path) == os.path.realpath(cfg['model'].get('pretrained') or ''):
        raise ConfigError(
            f'main_config.exp_name = {folder!r}: the trained model would overwrite main_config.model.pretrained; '
            'choose another folder.'
        )
    own = training.make_folder(folder)
    wanted = options['batch_size'] * options['max_steps']
    examples = Examples(env, options['first_example'], options['examples'] or wanted, options['answers'])
    report = Report(os.path.join(own, 'evaluations.jsonl'), held_out, options)
    arguments = {key: options[key] for key in ('max_steps', 'learning_rate', 'warmup_steps', 'weight_decay')}
    arguments.update(
        per_device_train_batch_size=options['batch_size'],
        lr_scheduler_type=options['lr_scheduler'],
        logging_steps=min(options['eval_freq'], 50),
    )
    training.fit(model, examples, collate, report, own, seed, arguments)
    ids = dict(eos_token_id=list(env.eos_token_ids), pad_token_id=env.tokenizer.pad_token_id)
    model.generation_config = saved_generation_config(model, ids, len(env.tokenizer), env.max_new_tokens)
    model.save_pretrained(path)
    env.tokenizer.save_pretrained(path)
    # Moved last, so that a failed run does not touch the model and the evaluations of an earlier one.
    os.replace(report.path, os.path.join(folder, 'evaluations.jsonl'))
    return path, report.value


def _model(cfg: Dict, env: TokenEnv) -> PreTrainedModel:
    """The model in float32: small steps vanish in bfloat16 weights."""
    allowed = ('pretrained', 'config', 'attn_implementation', 'gguf_file')
    for key, value in cfg.items():
        if key not in allowed:
            raise ConfigError(f'main_config.model.{key} = {value!r}: must be one of {", ".join(allowed)}.')
    vocabulary, longest = len(env.tokenizer), env.max_prompt_length + env.max_tokens
    pretrained, config, attention, gguf_file = (cfg.get(key) for key in allowed)
    if isinstance(config, dict):
        config = {'vocab_size': vocabulary, **config}
    model = build_causal_lm(pretrained, config, 'float32', attention, 'main_config.model', gguf_file)
    text = model.config.get_text_config()
    if text.vocab_size < vocabulary:
        raise ConfigError(
            f'main_config.model: its vocabulary of {text.vocab_size} tokens is smaller than the {vocabulary} of the '
            'tokenizer.'
        )
    positions = getattr(text, 'max_position_embeddings', None)
    if positions is not None and positions < longest:
        raise ConfigError(
            f'main_config.env.max_prompt_length = {env.max_prompt_length} with main_config.env.max_new_tokens = '
            f'{env.max_new_tokens}: {longest} tokens exceed the {positions} positions of main_config.model.'
        )
    return model


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.option('-c', '--config', required=True, type=ConfigFile(), help='Path of a config, or name of a shipped one.')
@click.option('-s', '--seed', default=0, show_default=True, help='Seed of the weights and the order of examples.')
@click.option('--exp-name', help="Output folder, overrides the config's.")
def main(config: str, seed: int, exp_name: Optional[str]) -> None:
    """Train a model on a task's reference answers."""
    folder, value = train(read_main_config(config, exp_name), seed)
    click.echo(f'held-out return {value:.3f}; model: {folder}')


if __name__ == '__main__':
    main()
