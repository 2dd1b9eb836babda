"""A trained model without this project: ``python plain.py FOLDER PROMPT...`` prints a greedy completion of each."""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def completed(folder, prompt, **options):
    """What transformers alone makes of a prompt, greedily."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors='pt').input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1]:].tolist()
    return tokenizer.decode(out[:-1] if out[-1] == tokenizer.eos_token_id else out)


if __name__ == '__main__':
    for text in sys.argv[2:]:
        print(completed(sys.argv[1], text))
    assert not any(name.startswith(('ding', 'dizoo')) for name in sys.modules)
