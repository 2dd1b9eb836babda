"""TRL's side of the benchmark of whole updates: ``python -m benchmarks.beside_trl.update_peer FOLDER THREADS``."""
import os
import re
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.beside_trl.game import HIGHEST, QUESTION, TURNS, answer
from benchmarks.beside_trl.protocol import LEARNING_RATE, PEER, Gate, equal_data, gradient_norm, own_folder, read_work


class Alternate(TrainerCallback):

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._gate.wait()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        tokens = self.trainer._metrics['train']['completions/mean_length'][-1]
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._gate.done(tokens=tokens * rows, updates=state.global_step)


def share_of_low(low):
    """A reward: the share of tokens that are among ``low``."""
    low = set(low)

    def share_of_low(completion_ids, **kwargs):
        return [sum(token in low for token in ids) / len(ids) for ids in completion_ids]

    return share_of_low


def right(completions, answer, **kwargs):
    """A reward: 1 for the answer and nothing else."""
    return [float(completion[0]['content'].strip() == a) for completion, a in zip(completions, answer)]


def near(completions, answer, **kwargs):
    """A reward: 1 / (1 + d) for a number, with the distance d to the answer."""
    texts = [completion[0]['content'].strip() for completion in completions]
    numbers = [int(t) if re.fullmatch(r'-?\d{1,9}', t, re.ASCII) else None for t in texts]
    return [0.0 if number is None else 1 / (1 + abs(number - int(a))) for number, a in zip(numbers, answer)]


class Game:
    """An ``environment_factory``. TRL takes the docstrings of its methods as descriptions of functions."""

    def reset(self, secret: int, **kwargs) -> None:
        self._secret = secret

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The guess.

        Returns:
            What the guess is answered.
        """
        return answer(number, self._secret)


def last_guess(completions, secret, **kwargs):
    """A reward: 1 if the last turn, whose call is not answered any more, guesses the number."""
    last = [(completion[-1].get('tool_calls') or [None])[0] for completion in completions]
    return [
        float(call is not None and answer(call['function']['arguments'].get('number'), s) == 'right')
        for call, s in zip(last, secret)
    ]


def main(folder: str, threads: int) -> None:
    """Make an update for each line of standard input."""
    torch.set_num_threads(threads)
    gate, work = Gate(), read_work(folder)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, 'model'))
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, 'model'), dtype=torch.float32)
    rows = work['groups'] * work['group_size']
    at_a_time = work.get('rows', rows)
    more, limits = {}, {}
    if 'messages' in work:  # of a pretrained language model
        reward = [right, near]
        options = dict(min_new_tokens=work['tokens']) if work.get('endless', False) else None
        data = dict(prompt=work['messages'], answer=work['answers'])
        limits = dict(reward_weights=[1.0, work['near']])
    elif 'game' in work:
        secrets = list(range(1, HIGHEST + 1)) * work['groups']
        question = [[dict(role='user', content=QUESTION)]] * len(secrets)
        reward, data, options = last_guess, dict(prompt=question, secret=secrets), None
        more, limits = dict(environment_factory=Game), dict(max_tool_calling_iterations=TURNS - 1)
    else:
        reward, data = share_of_low(work['low']), dict(prompt=work['prompts'])
        options = dict(suppress_tokens=list(range(len(tokenizer) - 3, len(tokenizer))))
    alternate = Alternate(gate)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(data),
        callbacks=[alternate],
        **more,
        args=GRPOConfig(
            **dict(PEER, bf16=work.get('bf16', False)),
            output_dir=own_folder(),
            per_device_train_batch_size=at_a_time,
            gradient_accumulation_steps=rows // at_a_time,
            num_generations=work['group_size'],
            max_completion_length=work.get('most_tokens', work['tokens']),
            **limits,
            generation_kwargs=options,
            learning_rate=LEARNING_RATE,
            max_steps=10 ** 6,
            seed=0,
        ),
    )
    alternate.trainer = trainer

    def check():
        data = equal_data(work, tokenizer)
        inputs = dict(
            prompt_ids=data['prompt'],
            prompt_mask=data['prompt_mask'],
            completion_ids=data['completion'],
            completion_mask=data['mask'],
            advantages=data['adv'],
            old_per_token_logps=data['logp_old'],
        )
        trainer.current_gradient_accumulation_steps = 1  # the loss is divided by it
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        return loss.item(), gradient_norm(trainer.model)

    def save(path):
        trainer.model.save_pretrained(path)
        tokenizer.save_pretrained(path)

    gate.check, gate.save = check, save
    trainer.train()


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
