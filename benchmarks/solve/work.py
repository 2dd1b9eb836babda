"""think_answer as the shipped config has it, written for both sides of solve.py and steps.py."""
import json
import os

from ding.utils import set_pkg_seed

from benchmarks.shared.runs import load_config
from ding_grpo.model import CausalLM
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer

CONFIG = 'think_answer_grpo'


def make_work(seed: int, updates: int, folder: str) -> None:
    """
    Overview:
        Write model, tokenizer, problems and sizes of the shipped config.
    """
    config, task = load_config(CONFIG)[0], ThinkAnswerTask()
    policy = config.policy
    set_pkg_seed(seed, use_cuda=False)
    CausalLM(config=policy.model.config
             ).save_pretrained(os.path.join(folder, 'model'), build_word_tokenizer(task.words))
    problems = [task.problem(i) for i in range(len(task))]
    work = dict(
        problems=[dict(prompt=p.prompt, answer=p.answer) for p in problems],
        updates=updates,
        rows=policy.collect.groups * policy.group_size,
        steps=policy.collect.groups // policy.learn.batch_groups,
        group_size=policy.group_size,
        tokens=config.env.max_new_tokens,
        freq=policy.eval.evaluator.eval_freq,
        learning_rate=policy.learn.learning_rate,
        clip_ratio=policy.learn.clip.ratio,
    )
    with open(os.path.join(folder, 'work.json'), 'w') as f:
        json.dump(work, f)
