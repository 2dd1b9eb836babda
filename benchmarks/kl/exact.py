"""The KL of think_answer's policy to its start over the vocabulary, by plain ``transformers``."""
import copy
import os
from typing import Any, Dict, Optional

import torch
from ding.worker import LearnerHook, register_learner_hook
from transformers import PreTrainedModel

from ding_common import append_json
from ding_grpo.rl_utils import KL_TYPES, exact_kl, kl_estimate
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer

NEW_TOKENS = 10  # as in the shipped configs
CURVE_EVERY, CURVE_ROWS = 8_000, 64  # environment steps; completions per question


@torch.no_grad()
def measure(model: PreTrainedModel, reference: PreTrainedModel, rows: int) -> Dict[str, float]:
    """
    Overview:
        Exact KL(model || reference) over the vocabulary and its estimators, by plain ``transformers``.
    Arguments:
        - rows (:obj:`int`): Completions per question, sampled from ``model`` at temperature 1.
    Returns:
        - kl (:obj:`Dict[str, float]`): ``exact`` and the names of the estimators; means over all sampled tokens, in \
            nats.
    """
    task = ThinkAnswerTask()
    tokenizer = build_word_tokenizer(task.words)
    prompts = tokenizer([task.problem(i).prompt for i in range(len(task))], return_tensors='pt').input_ids
    with torch.random.fork_rng():  # the run must not notice
        torch.manual_seed(0)
        ids = model.generate(
            input_ids=prompts.repeat_interleave(rows, 0),
            attention_mask=torch.ones_like(prompts.repeat_interleave(rows, 0)),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    begin = prompts.shape[1]
    tokens = ids[:, begin:]
    ended = (tokens == tokenizer.eos_token_id).long()
    sampled = ended.cumsum(1) - ended == 0  # up to and with the first end-of-sequence token
    new, ref = (m(ids).logits[:, begin - 1:-1] for m in (model, reference))
    logp_new, logp_ref = (x.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] for x in (new, ref))
    kl = {name: kl_estimate(logp_new, logp_ref, name) for name in KL_TYPES}
    return {name: value[sampled].mean().item() for name, value in dict(kl, exact=exact_kl(new, ref)).items()}


class KLHook(LearnerHook):
    """
    Overview:
        Keep the model at the start; measure the KL to it every ``CURVE_EVERY`` environment steps.
    """
    start: Optional[PreTrainedModel] = None
    path, due = '', 0

    @classmethod
    def begin(cls, path: str) -> Dict[str, Any]:
        """The entry for ``learner.hook`` of the next run of this process, which writes to a file of JSON lines."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, 'w').close()
        cls.start, cls.path, cls.due = None, os.path.abspath(path), 0
        return dict(name='kl', type='kl', position='before_iter', priority=1)

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        model = engine.policy.get_attribute('model')
        lm = getattr(model, 'actor', model).lm
        if self.start is None:
            KLHook.start = copy.deepcopy(lm)
        if engine.collector_envstep >= self.due:
            KLHook.due = engine.collector_envstep + CURVE_EVERY
            append_json(self.path, dict(envstep=engine.collector_envstep, **measure(lm, self.start, CURVE_ROWS)))


register_learner_hook('kl', KLHook)
