"""
Train a reward model: ``python -m dizoo_llm.train_reward_model -c CONFIG -s SEED`` learns from pairs of completions, of
which one is better, with the ``Trainer`` of ``transformers``. A GRPO config loads the resulting folder as
``env.reward_models=[dict(pretrained=FOLDER)]``.

The loss is that of Bradley and Terry, -log sigmoid(score of the better one - score of the other).
"""
import json
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import click
import torch
from ding.utils import deep_merge_dicts, set_pkg_seed
from torch.nn import functional as F
from transformers import PreTrainedModel, Trainer, TrainingArguments

from ding_common import (
    ConfigError, ConfigFile, Rule, append_json, check_config, config_errors, read_main_config, run_file
)
from ding_common.hub.language_model import build_reward_model

from .base.problem import check_unanswered, is_prompt
from .envs import TokenEnv
from .envs.options import ENV_OPTIONS, ENV_RULES
from .models import training
from .models.reward_model import read_rows
from .text.chat import encode_dialogue

DEFAULT = dict(
    # (str) Output folder of the run; the model is saved in FOLDER/model.
    exp_name='runs/reward_model',
    # (dict) As in a GRPO config: its task and tokenizer give the tokenizer of the model.
    env=dict(),
    # (dict) ``pretrained``, a folder or hub name, or ``config`` with ``model_type`` for random weights.
    model=dict(),
    train=dict(
        # (str) JSON lines with ``prompt``, ``chosen`` and ``rejected``, or a Python file whose ``pair(index)`` returns
        # these three.
        pairs='',
        # (int) Number of training pairs.
        number=2000,
        # (int) Number of held-out pairs, which follow those of training.
        held_out=500,
        # (int) Pairs per step.
        batch_size=32,
        # (int) Passes over the training pairs.
        epochs=3,
        # (float) Learning rate of AdamW, which falls to 0.
        learning_rate=3e-4,
        # (float) Weight decay.
        weight_decay=0.0,
        # (int) Steps between evaluations.
        eval_freq=50,
    ),
)
RULES = {
    'train.pairs': Rule('the path of a .jsonl or .py file', lambda v: isinstance(v, str) and os.path.isfile(v)),
    'train.number': Rule.integer(1),
    'train.held_out': Rule.integer(1),
    'train.batch_size': Rule.integer(1),
    'train.epochs': Rule.integer(1),
    'train.learning_rate': Rule.number(0, open_low=True),
    'train.weight_decay': Rule.number(0),
    'train.eval_freq': Rule.integer(1),
}


class Pair(NamedTuple):
    """Two completions of one prompt, text or chat messages, of which the first is better."""
    prompt: Any
    chosen: str
    rejected: str


Row = Tuple[List[int], List[int]]  # token ids of the better dialogue of a pair and of the other one


class PreferenceTrainer(Trainer):

    def compute_loss(self, model: PreTrainedModel, inputs: Dict[str, Any], *args, **kwargs) -> torch.Tensor:
        chosen, rejected = read_rows(model, inputs['rows']).chunk(2)  # (B, ) each
        return -F.logsigmoid(chosen - rejected).mean()


def collate(rows: List[Row]) -> Dict[str, List[List[int]]]:
    """All better dialogues of a batch, then all others."""
    return dict(rows=[chosen for chosen, _ in rows] + [rejected for _, rejected in rows])


@torch.no_grad()
def accuracy(model: PreTrainedModel, pairs: List[Row], batch_size: int = 64) -> float:
    """Share of pairs whose better completion has the higher score."""
    model.eval()
    right = 0
    for begin in range(0, len(pairs), batch_size):
        chosen, rejected = read_rows(model, **collate(pairs[begin:begin + batch_size])).chunk(2)
        right += (chosen > rejected).sum().item()
    model.train()
    return right / len(pairs)


class Report(training.Report):
    """Evaluates whenever the trainer logs a loss, and prints one line each time."""

    def __init__(self, path: str, held_out: List[Row]) -> None:
        super().__init__(path)
        self._held_out = held_out

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Dict = {}, **kwargs) -> None:
        if 'loss' in logs:
            self.evaluate(state.global_step, kwargs['model'], float(logs['loss']))

    def evaluate(self, step: int, model: PreTrainedModel, loss: Optional[float] = None) -> None:
        self.step, self.value = step, accuracy(model, self._held_out)
        append_json(self.path, dict(step=step, loss=loss, held_out_accuracy=self.value))
        click.echo(f"step {step}{'' if loss is None else f'  loss {loss:.4f}'}  held-out accuracy {self.value:.3f}")


def read_pairs(path: str, number: int) -> List[Pair]:
    """The first pairs of a file, see ``train.pairs``."""
    get: Callable[[int], Any]
    if path.endswith('.py'):
        get = run_file(path, 'main_config.train.pairs').get('pair')
        if not callable(get):
            raise ConfigError(f'main_config.train.pairs = {path!r}: must define a function pair.')
    else:
        with open(path, encoding='utf-8') as f:
            lines = f.readlines()
        if len(lines) < number:
            raise ConfigError(
                f'main_config.train.pairs = {path!r}: it has {len(lines)} lines; train.number and train.held_out need '
                f'{number}. Lower them.'
            )

        def get(index: int) -> Any:
            return json.loads(lines[index])

    return [_pair(get, index, f'main_config.train.pairs = {path!r}: pair {index}') for index in range(number)]


def _pair(get: Callable[[int], Any], index: int, where: str) -> Pair:
    with config_errors(f'{where}: must have prompt, chosen and rejected'):
        given = get(index)
        pair = Pair(**{name: given[name] for name in Pair._fields}) if isinstance(given, dict) else Pair(*given)
    if not is_prompt(pair.prompt) or not isinstance(pair.chosen, str) or not isinstance(pair.rejected, str):
        raise ConfigError(f'{where}: prompt must be text or chat messages, chosen and rejected text: {pair!r:.200}')
    check_unanswered(pair.prompt, where)
    return pair


def train(main_config: Dict, seed: int) -> Tuple[str, float]:
    """Train and save a reward model by a config, see ``DEFAULT``. Returns its folder and its held-out accuracy."""
    check_config(main_config, DEFAULT, RULES, 'main_config')
    cfg = deep_merge_dicts(DEFAULT, main_config)
    check_config(cfg['env'], ENV_OPTIONS, ENV_RULES, 'main_config.env')
    options, folder = cfg['train'], cfg['exp_name']
    if not options['pairs']:
        raise ConfigError(f"main_config.train.pairs = '': must be {RULES['train.pairs'].allowed}.")
    set_pkg_seed(seed, use_cuda=torch.cuda.is_available())
    tokenizer = TokenEnv(**cfg['env']).tokenizer
    pairs = read_pairs(options['pairs'], options['number'] + options['held_out'])
    rows = [tuple(encode_dialogue(tokenizer, p.prompt, text) for text in (p.chosen, p.rejected)) for p in pairs]
    learned, held_out = rows[:options['number']], rows[options['number']:]
    model = build_reward_model(len(tokenizer), 'main_config.model', **cfg['model'])
    model.config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    own = training.make_folder(folder)
    report = Report(os.path.join(folder, 'evaluations.jsonl'), held_out)
    arguments = dict(
        per_device_train_batch_size=options['batch_size'],
        num_train_epochs=options['epochs'],
        learning_rate=options['learning_rate'],
        weight_decay=options['weight_decay'],
        lr_scheduler_type='linear',
        logging_steps=options['eval_freq'],
        dataloader_pin_memory=False,
    )
    training.fit(model, learned, collate, report, own, seed, arguments, PreferenceTrainer)
    path = os.path.join(folder, 'model')
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path, report.value


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.option('-c', '--config', required=True, type=ConfigFile(), help='Path of a config, or name of a shipped one.')
@click.option('-s', '--seed', default=0, show_default=True, help='Seed of the weights and the order of pairs.')
@click.option('--exp-name', help="Output folder, overrides the config's.")
def main(config: str, seed: int, exp_name: Optional[str]) -> None:
    """Train a reward model on pairs of completions."""
    folder, value = train(read_main_config(config, exp_name), seed)
    click.echo(f'held-out accuracy {value:.3f}; model: {folder}')


if __name__ == '__main__':
    main()
