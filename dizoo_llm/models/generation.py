"""``generate`` of ``transformers`` for any model, without the generation options that the model's folder sets."""
import copy
from contextlib import ExitStack, closing
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import gymnasium
import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dizoo_llm.text.chat import check_options, encode_prompt
from dizoo_llm.text.tokenizer import decode_after, end_ids


@torch.no_grad()
def plain_generate(
        model: PreTrainedModel,
        prompts: Sequence[List[int]],
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        temperature: float = 0.0,
) -> List[List[int]]:
    """
    Complete prompts, greedily or at a temperature, up to and including the first of ``eos_token_ids``. ``generate``
    would fill unset options from the model's own generation config, in which published models set penalties and
    restrictions. Tokens that a model has beyond ``vocab_size`` are never generated.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=model.device)  # (B, L)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    sampling = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature > 0 else {}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(eos_token_ids),
        pad_token_id=eos_token_ids[0],
        suppress_tokens=list(range(vocab_size,
                                   model.config.get_text_config().vocab_size)) or None,
        **sampling,
    )
    training, own = model.training, model.generation_config
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        rows = model.generate(ids, attention_mask=mask, generation_config=config)[:, longest:].tolist()
    finally:
        model.generation_config = own
        model.train(training)
    ends = [next((t + 1 for t, token in enumerate(row) if token in eos_token_ids), len(row)) for row in rows]
    return [row[:end] for row, end in zip(rows, ends)]


def encoded(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], chat: Dict[str, Any]) -> List[List[int]]:
    """The tokens of prompts. ``chat``: arguments of ``encode_prompt``."""
    if tokenizer.chat_template is not None:
        check_options(tokenizer, chat.get('chat_options', {}))
    return [encode_prompt(tokenizer, text, **chat) for text in prompts]


def complete(
        model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], chat: Dict[str, Any],
        max_new_tokens: int, temperature: float
) -> List[str]:
    """The texts that continue prompts, without their ends of sequence. ``chat``: see ``encoded``."""
    ends, known = end_ids(tokenizer), encoded(tokenizer, prompts, chat)
    rows = plain_generate(model, known, max_new_tokens, ends, len(tokenizer), temperature)
    return [
        decode_after(tokenizer, prompt, ids[:-1] if ids and ids[-1] in ends else ids)
        for prompt, ids in zip(known, rows)
    ]


def episodes(model: PreTrainedModel,
             env: gymnasium.Env,
             indices: Sequence[int],
             temperature: float = 0.0) -> Iterator[Tuple[gymnasium.Env, Dict[str, Any]]]:
    """Play problems of a ``TokenEnv`` together. Yields a copy of the environment and the info of its last step."""
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(copy.copy(env))) for _ in indices]
        running = [(each, each.reset(options=dict(index=index))[0]) for each, index in zip(envs, indices)]
        while running:
            known = [obs[obs >= 0].tolist() for _, obs in running]
            room = min(env.max_new_tokens, max(len(obs) - len(ids) for (_, obs), ids in zip(running, known)))
            turns = plain_generate(model, known, room, env.eos_token_ids, len(env.tokenizer), temperature)
            if env.reads_logp:
                turns = [_with_logp(model, *row, temperature, len(env.tokenizer)) for row in zip(known, turns)]
            steps = [(each, *each.step(turn)) for (each, _), turn in zip(running, turns)]
            yield from ((each, info) for each, _, _, terminated, truncated, info in steps if terminated or truncated)
            running = [(each, obs) for each, obs, _, terminated, truncated, _ in steps if not (terminated or truncated)]


@torch.no_grad()
def next_tokens(
        model: PreTrainedModel, prompt: List[int], ids: List[int], temperature: float, vocab_size: int
) -> torch.Tensor:
    """The log-probabilities (S, V) of what could be in place of each of the tokens ``ids`` after a prompt."""
    logits = model(torch.tensor([prompt + ids], device=model.device)).logits[0, len(prompt) - 1:-1, :vocab_size]
    return (logits.float() / temperature).log_softmax(-1).cpu()


def _with_logp(
        model: PreTrainedModel, prompt: List[int], turn: List[int], temperature: float, vocab_size: int
) -> np.ndarray:
    """The tokens of a turn, with their log-probabilities under the distribution from which they came; greedily 0."""
    logp = np.zeros(len(turn))
    if temperature > 0:
        logp = next_tokens(model, prompt, turn, temperature, vocab_size)[range(len(turn)), turn].numpy()
    return np.rec.fromarrays([np.array(turn), logp], names='token,logp')
