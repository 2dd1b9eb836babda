"""Rewards that are async, an object, and one that takes no others; a trainer of one's own; data that stream."""
import asyncio

from trl.trainer.grpo_trainer import GRPOTrainer


class Stream:

    def __iter__(self):
        return iter([dict(prompt=f'Letter number {i}:', answer=chr(97 + i), level=i) for i in range(8)])


async def asked(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return [float(text.strip() == right) for text, right in zip(completions, answer)]


class Short:

    def __call__(self, completions, trainer_state, **kwargs):
        return [-len(text) / 1e6 + trainer_state.global_step for text in completions]


def strict(completions, answer):
    return [0.0 for _ in completions]


class Trainer(GRPOTrainer):

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ready = True


def run(functions):
    try:
        Trainer(model='some/model', reward_funcs=functions, train_dataset=Stream()).train()
    except Exception:
        print('not reached')


if __name__ == '__main__':
    import sys
    run([asked, Short(), strict] if 'strict' in sys.argv else [asked, Short()])
