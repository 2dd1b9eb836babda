"""Arguments of a command line, as classes, from a file too."""
from __future__ import annotations

import json
from dataclasses import dataclass, field

from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


@dataclass
class Arguments(ScriptArguments):
    rewards: list[str] = field(default_factory=lambda: ['exact'])


@dataclass
class Config(GRPOConfig):
    note: str = 'none'


def exact(completions, answer, **kwargs):
    return [float(text == right) for text, right in zip(completions, answer)]


def first(completions, answer, **kwargs):
    return [0.5 * (text[:1] == right[:1]) for text, right in zip(completions, answer)]


def main(script_args, training_args, model_args):
    with open(script_args.dataset_name, encoding='utf-8') as f:
        rows = [json.loads(line) for line in f]
    assert float(training_args.learning_rate) == 1e-6 and training_args.note == 'kept'
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[globals()[name] for name in script_args.rewards],
        args=training_args,
        train_dataset=[dict(row, prompt=row.pop('question')) for row in rows],
        peft_config=get_peft_config(model_args),
    )
    trainer.train()


if __name__ == '__main__':
    import sys
    classes = (Arguments, Config, ModelConfig)
    if '--config' in sys.argv:
        main(*TrlParser(classes).parse_args_and_config())
    else:
        main(*HfArgumentParser(classes).parse_args_into_dataclasses())
