"""Saves a model as a folder that ``transformers`` loads."""
import copy
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Sequence

from torch import Tensor, nn

from ding_common.hub.generation_config import saved_generation_config
from ding_common.hub.loading import no_bars


def save_folder(
        model: Any,
        folder: str,
        tokenizer: Optional[object],
        max_new_tokens: Optional[int],
        state_dict: Optional[Dict[str, Tensor]],
        eos_token_ids: Sequence[int],
        merge: bool,
) -> None:
    """Write a ``CausalLM``, its tokenizer and its generation defaults; arguments as of its ``save_pretrained``. Of a
    model with adapters, only these are saved, or with ``merge`` the whole model with merged adapters."""
    lm, adapters, ids = model.lm, model.peft, {}
    if tokenizer is not None:
        ids = {name: getattr(tokenizer, name) for name in ('bos_token_id', 'eos_token_id', 'pad_token_id')}
        tokenizer.save_pretrained(folder)
    if len(eos_token_ids) > 1:
        ids['eos_token_id'] = list(eos_token_ids)
    for name, value in ids.items():
        setattr(lm.config, name, value)
    lm.generation_config = saved_generation_config(lm, ids, model.output_tokens, max_new_tokens)
    with no_bars():
        if adapters is None:
            if state_dict is not None:
                state_dict = {name.removeprefix('lm.'): value for name, value in state_dict.items()}
            lm.save_pretrained(folder, state_dict=state_dict)
        elif merge:
            copy.deepcopy(adapters).merge_and_unload().save_pretrained(folder)
        else:
            adapters.save_pretrained(folder)
            _write_card(folder, adapters.peft_config['default'])
            lm.generation_config.save_pretrained(folder)


@contextmanager
def replaced_weights(model: nn.Module, state_dict: Dict[str, Tensor]) -> Iterator[None]:
    """Context in which a model has other weights."""
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state_dict)
    try:
        yield
    finally:
        model.load_state_dict(own)


def _write_card(folder: str, config: object) -> None:
    """Replace peft's model card, an empty form, by what is known."""
    base, modules = config.base_model_name_or_path, config.target_modules
    where = modules if isinstance(modules, str) else ', '.join(sorted(modules or ()))
    with open(os.path.join(folder, 'README.md'), 'w', encoding='utf-8') as f:
        f.write(
            f"""---
base_model: {base}
library_name: peft
pipeline_tag: text-generation
tags:
- lora
- grpo
---

# LoRA adapters, trained by GRPO

Rank {config.r} on {where}, for the base model `{base}`. Trained with ding-grpo.

```python
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained('this folder')
tokenizer = AutoTokenizer.from_pretrained('this folder')
```
"""
        )
