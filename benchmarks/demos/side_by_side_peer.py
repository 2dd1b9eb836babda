"""
``with_trl.py`` in the current folder, with greedy evaluations between its updates: ``python -m
benchmarks.demos.side_by_side_peer``. Prints a line of JSON for each: updates, seconds without evaluations, accuracy.
"""
import json
import re
import runpy
import time
from functools import partial

import torch
import trl
from transformers import TrainerCallback

FREQ, TOKENS, ROWS = 5, 16, 50


class Evaluate(TrainerCallback):
    """
    Overview:
        Greedy answers to the held-out problems before the first update and after every ``FREQ``.
    """

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **kwargs) -> None:
        with open('eval.jsonl') as f:
            rows = [json.loads(line) for line in f]
        self._answers, self._tokenizer = [row['answer'] for row in rows], processing_class
        self._texts = [
            processing_class.apply_chat_template(row['prompt'], tokenize=False, add_generation_prompt=True)
            for row in rows
        ]
        self._seconds, self._since = 0.0, time.perf_counter()
        self._evaluate(model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        if state.global_step % FREQ == 0:
            self._evaluate(model, state.global_step)

    @torch.no_grad()
    def _evaluate(self, model, updates: int) -> None:
        self._seconds += time.perf_counter() - self._since
        model.eval()
        right = []
        for i in range(0, len(self._texts), ROWS):
            read = self._tokenizer(
                self._texts[i:i + ROWS],
                return_tensors='pt',
                padding=True,
                padding_side='left',
                add_special_tokens=False
            )
            ids = model.generate(**read, do_sample=False, max_new_tokens=TOKENS)[:, read['input_ids'].shape[1]:]
            texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
            right += [re.findall(r'\d+', t)[-1:] == [a] for t, a in zip(texts, self._answers[i:i + ROWS])]
        model.train()
        told = dict(updates=updates, seconds=self._seconds, accuracy=sum(right) / len(right))
        print('evaluation', json.dumps(told), flush=True)
        self._since = time.perf_counter()


if __name__ == '__main__':
    trl.GRPOTrainer = partial(trl.GRPOTrainer, callbacks=[Evaluate()])
    runpy.run_path('with_trl.py')
