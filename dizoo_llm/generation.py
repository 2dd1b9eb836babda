"""``generate`` of ``transformers`` for any model, without the generation options that the model's folder sets."""
from typing import List, Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel


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
    Overview:
        Complete prompts. ``generate`` fills unset options from the model's own generation config, in which published \
        models set penalties and restrictions. This function ignores that config.
    Arguments:
        - model (:obj:`PreTrainedModel`): A causal language model.
        - prompts (:obj:`Sequence[List[int]]`): Token ids.
        - max_new_tokens (:obj:`int`): Maximum completion length.
        - eos_token_ids (:obj:`Sequence[int]`): A completion ends with the first of these.
        - vocab_size (:obj:`int`): Vocabulary size of the tokenizer. A model may have more tokens; they are never \
            generated.
        - temperature (:obj:`float`): Sampling temperature; 0 is greedy decoding.
    Returns:
        - completions (:obj:`List[List[int]]`): Token ids, including the end-of-sequence token if there is one.
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
