"""What a saved model's ``generate`` does by default."""
import copy
import warnings
from typing import Any, Dict, Optional

from transformers import GenerationConfig, PreTrainedModel


def saved_generation_config(
        lm: PreTrainedModel, ids: Dict[str, Any], tokens: int, max_new_tokens: Optional[int]
) -> GenerationConfig:
    """Defaults of ``generate`` of a trained model: those of the model that it started from, not those of the training.
    A model that started from random weights has none: it decodes greedily, as far as it was trained. ``ids`` are
    special tokens by name, such as ``eos_token_id``. Tokens beyond the ``tokens`` of the tokenizer are suppressed.
    ``max_new_tokens`` is the length limit of the training; a lower one of the start is raised."""
    config, limit = copy.deepcopy(lm.generation_config), lm.generation_config.max_new_tokens
    try:
        config.validate(strict=True)
    except ValueError as error:  # it could not be saved
        warnings.warn(f'{lm.name_or_path}: its generation settings are not saved, since they contradict: {error}')
        config = GenerationConfig()
    if not lm.name_or_path:
        config, limit = GenerationConfig(do_sample=False), 0
    if limit is not None and max_new_tokens is not None:
        config.max_new_tokens = max(limit, max_new_tokens)
    config.suppress_tokens = list(range(tokens, lm.config.get_text_config().vocab_size)) or None
    for name, value in ids.items():
        setattr(config, name, value)
    return config
