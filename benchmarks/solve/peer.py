"""TRL learns think_answer: ``python -m benchmarks.solve.peer FOLDER SEED``; prints a line of JSON at its end."""
import json
import os
import runpy
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.beside_trl.protocol import PEER, own_folder, versions
from benchmarks.shared.paths import ROOT

TAGS = runpy.run_path(os.path.join(ROOT, 'dizoo_llm', 'rewards', 'tags.py'))  # standard library alone


class Score:
    """
    Overview:
        The parts of think_answer's reward for a completion given as token ids.
    """

    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, ids, answer: str):
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        right, form = TAGS['answer_reward'](text, answer), TAGS['format_reward'](text)
        ended = self._tokenizer.eos_token_id in ids
        return right, form, float(right == 1 and TAGS['is_formatted'](text) and ended)


class Evaluate(TrainerCallback):
    """
    Overview:
        Greedy answers to all questions before the first update and every ``freq`` of them, until all are solved.
    """

    def __init__(self, work, tokenizer, score: Score) -> None:
        self._work, self._score = work, score
        self._prompts = tokenizer([p['prompt'] for p in work['problems']], return_tensors='pt')
        self.solved = None

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        self._since = time.perf_counter()
        self._evaluate(model)

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        update, rest = divmod(state.global_step, self._work['steps'])
        if rest == 0 and update % self._work['freq'] == 0 and self._evaluate(model) == 1:
            self.solved, control.should_training_stop = update, True
        self.seconds = time.perf_counter() - self._since

    @torch.no_grad()
    def _evaluate(self, model) -> float:
        model.eval()
        ids = model.generate(**self._prompts, do_sample=False, max_new_tokens=self._work['tokens'])
        model.train()
        completions = ids[:, self._prompts['input_ids'].shape[1]:].tolist()
        solved = [self._score(c, p['answer'])[2] for c, p in zip(completions, self._work['problems'])]
        return sum(solved) / len(solved)


def main(folder: str, seed: int) -> None:
    """Train until it is solved."""
    with open(os.path.join(folder, 'work.json')) as f:
        work = json.load(f)
    out = os.fdopen(os.dup(1), 'w')  # whatever else is printed goes to stderr
    os.dup2(2, 1)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, 'model'))
    score = Score(tokenizer)
    evaluate = Evaluate(work, tokenizer, score)

    def reward(prompts, completion_ids, answer, **kwargs):
        parts = (score(ids, a) for ids, a in zip(completion_ids, answer))
        return [right + 0.5 * form + 0.5 * solved for right, form, solved in parts]

    problems = work['problems'] * 100
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(os.path.join(folder, 'model'), dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(problems),
        callbacks=[evaluate],
        args=GRPOConfig(
            **PEER,
            output_dir=own_folder(),
            per_device_train_batch_size=work['rows'] // work['steps'],
            steps_per_generation=work['steps'],
            num_generations=work['group_size'],
            max_completion_length=work['tokens'],
            epsilon=work['clip_ratio'],
            scale_rewards='none',
            learning_rate=work['learning_rate'],
            max_steps=work['updates'] * work['steps'],
            seed=seed,
        ),
    )
    trainer.train()
    told = dict(
        updates=evaluate.solved,
        seconds=evaluate.solved and evaluate.seconds,
        update=evaluate.seconds * work['steps'] / trainer.state.global_step,
        versions=versions(),
    )
    out.write(json.dumps(told) + '\n')


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
