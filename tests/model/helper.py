"""Small random models of many architectures, and what ``transformers`` computes of rows that it reads alone."""
import itertools
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ding_grpo.model import CausalLM
from ding_grpo.model.read.decoding import SHARED, start
from ding_grpo.rl_utils import naive_method

CPU = torch.device('cpu')
PLAIN = dict(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
COMMON = dict(PLAIN, intermediate_size=48)
WIDE = dict(COMMON, num_key_value_heads=2)
GPT2 = dict(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64)
CONFIGS = {  # they share prompts
    'llama': WIDE,
    'qwen2': WIDE,
    'qwen3': dict(WIDE, head_dim=8),
    'gemma': dict(COMMON, num_key_value_heads=1, head_dim=8),
    'gemma2': dict(WIDE, head_dim=8, sliding_window=6),
    'mistral': dict(WIDE, sliding_window=6),
    'gpt2': GPT2,
}


class ShortBeginnings:
    """A model for ``generate`` that reads common beginnings of any length once, as long ones always are."""

    def __init__(self, model):
        assert model.shares_prompts
        self.model, self.arithmetic = model, model.arithmetic

    def start(self, prompts, max_new_tokens):
        return start(self.model, SHARED, prompts, least=0)


def of(config, **options):
    """A random model of a config, the same in each test."""
    torch.manual_seed(0)
    return CausalLM(config=config, **options)


def make(name, config=None, scale=4, **options):
    """A model whose distributions are far enough from uniform that a wrong position shows."""
    model = of(dict(CONFIGS[name] if config is None else config, model_type=name), **options)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(scale)
    return model


def logits_alone(model, prompts, completion):
    """The logits of completions, each row read whole, by itself, without a cache."""
    rows = zip(prompts, completion)
    found = [model.lm(torch.cat(row)[None], use_cache=False).logits[0, len(row[0]) - 1:-1] for row in rows]
    return torch.stack(found).float()


def alone(model, prompts, completion):
    """The log-probabilities of completions, in the same way."""
    return naive_method(logits_alone(model, prompts, completion), completion)


def gradient(model, values):
    """Of the sum of values, with respect to all weights."""
    model.zero_grad()
    values.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def uniform(rows, tokens):
    return torch.rand(rows, tokens, dtype=torch.double, generator=torch.Generator().manual_seed(2))


def tokens_read(model):
    """A list that grows by the number of tokens of each pass of the model from here on."""
    if model.shares_prompts:  # the trial and the measurement of the output layer read too
        model.output_head()
    read = []
    model.lm.get_input_embeddings().register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    return read


def set_way(model, way):
    """Rows are read in another way than the one that the trial finds."""
    model.load_way_state(dict(model.way_state(), way=way))


def divisions(number):
    """All ways to cut a list of this length, each as (begin, end) of its parts."""
    for cuts in itertools.product([False, True], repeat=number - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [number]
        yield list(zip([0, *ends], ends))


@contextmanager
def modules_called():
    """The modules that are called, each once for each call."""
    called = []
    hook = register_module_forward_pre_hook(lambda module, args: called.append(module))
    try:
        yield called
    finally:
        hook.remove()
