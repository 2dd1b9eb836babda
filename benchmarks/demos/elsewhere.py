"""
What SmolLM2 loses elsewhere when it learns sums and differences: accuracy on tasks that were not trained, the
log-probability of its earlier answers, and the KL to the start. By plain ``transformers``.
"""
from typing import Any, Dict, List, Tuple

import torch
from transformers import PreTrainedModel

from benchmarks.shared.runs import load_config
from ding_grpo.rl_utils import exact_kl
from dizoo_llm.envs import TokenEnv
from dizoo_llm.sft import evaluate
from dizoo_llm.text.chat import encode_prompt

ELSEWHERE = ('letter_counting', 'gcd')  # tasks that are not trained
PROBLEMS = 128  # of each of them
OF_KL = 64  # held-out problems for the KL
TASK = dict(type='reasoning_gym', size=1, eval_size=PROBLEMS, examples=3)  # none is trained
QUESTIONS = (
    'What is a good breakfast?', 'Why is the sky blue?', 'Name three animals that live in the sea.',
    'How do I boil an egg?', 'Write a short poem about rain.', 'What does a baker do?',
    'Explain what a library is to a child.', 'Give me an idea for a birthday present.',
    'What is the difference between a lake and a sea?', 'How can I sleep better?', 'Tell me a fact about the moon.',
    'What should I pack for a day in the mountains?', 'Why do leaves fall in autumn?', 'What is a bicycle made of?',
    'How do plants drink?', 'Describe your favourite season.'
)
ANSWER_TOKENS = 48
Answers = List[Tuple[List[int], List[int]]]  # prompt and answer, as token ids


def environment(evaluation: bool = True, **task: Any) -> TokenEnv:
    env = config().env
    options = dict(tokenizer=env.tokenizer, max_new_tokens=env.max_new_tokens)
    return TokenEnv(evaluation=evaluation, task=task or env.task, **options)


def config() -> Any:
    return load_config('smollm2_grpo')[0]


@torch.no_grad()
def costs(model: PreTrainedModel, start: PreTrainedModel, answers: Answers) -> Dict[str, float]:
    """
    Overview:
        Accuracy on tasks that were not trained, log-probability of the start's answers, and KL to the start, by plain
        ``transformers``; and the number of problems.
    """
    found = {'problems': PROBLEMS}
    found.update({name: evaluate(model, environment(**TASK, name=name), PROBLEMS) for name in ELSEWHERE})
    logp = [log_probs(model, prompt, answer) for prompt, answer in answers]
    found['chat'] = torch.cat(logp).mean().item()
    env, kl = environment(), []
    torch.manual_seed(0)
    for i in range(OF_KL):
        prompt = env.encode(env.problems.checked_problem(i))
        ids = sample(model, prompt, env.max_new_tokens, env.tokenizer.eos_token_id)
        row = torch.tensor([prompt + ids])
        new, ref = (m(row).logits[0, len(prompt) - 1:-1] for m in (model, start))
        kl.append(exact_kl(new, ref))
    found['kl'] = torch.cat(kl).mean().item()
    return found


def log_probs(model: PreTrainedModel, prompt: List[int], answer: List[int]) -> torch.Tensor:
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1]
    return logits.log_softmax(-1)[range(len(answer)), answer]


@torch.no_grad()
def kl_of_right_answers(start: PreTrainedModel) -> float:
    """
    Overview:
        The KL to the start, per token, of a policy that samples the right answers and nothing else: their mean negative
        log-probability under the start.
    """
    env, logp = environment(), []
    for i in range(OF_KL):
        problem = env.problems.checked_problem(i)
        logp.append(log_probs(start, env.encode(problem), env.encode_answer(problem.answer)))
    return -torch.cat(logp).mean().item()


def sample(model: PreTrainedModel, prompt: List[int], tokens: int, eos: int) -> List[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=tokens,
        eos_token_id=eos,
        pad_token_id=eos
    )
    return out[0, len(prompt):].tolist()


def answers_of(start: PreTrainedModel) -> Answers:
    """Prompt and sampled answer of the start to each of ``QUESTIONS``."""
    tokenizer = environment().tokenizer
    torch.manual_seed(0)
    prompts = [encode_prompt(tokenizer, question) for question in QUESTIONS]
    return [(p, sample(start, p, ANSWER_TOKENS, tokenizer.eos_token_id)) for p in prompts]
