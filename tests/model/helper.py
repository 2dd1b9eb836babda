"""Small random models of many architectures, and what ``transformers`` computes of rows that it reads alone."""
import itertools
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.architectures.configs import config_of
from ding_grpo.model import CausalLM
from ding_grpo.model.read.decoding import SHARED, start
from ding_grpo.rl_utils import linear_log_prob, naive_method
from tests import policies

CPU = torch.device('cpu')
NAMES = ['llama', 'qwen2', 'qwen3', 'gemma', 'gemma2', 'mistral', 'gpt2']  # they share prompts
FEW = [
    'llama', 'gemma2', 'mistral', 'gpt2'
]  # of each kind: plain, soft caps and windows, windows alone, learned positions


class ShortBeginnings:
    """A model for ``generate`` that reads common beginnings of any length once, as long ones always are."""

    def __init__(self, model):
        assert model.shares_prompts
        self.model, self.arithmetic = model, model.arithmetic

    def start(self, prompts, max_new_tokens):
        return start(self.model, SHARED, prompts, least=0)


def make(name, scale=4, change={}, **options):
    """A model of the table of architectures, the same in each test, with changes of its config. With its large weights,
    distributions are far enough from uniform that a wrong position shows."""
    torch.manual_seed(0)
    model = CausalLM(config={**config_of(name), **change}, **options)
    policies.change(model, scale)
    return model


def logits_alone(model, prompts, completion):
    """The logits of completions, each row read whole, by itself, without a cache."""
    rows = zip(prompts, completion)
    with model.arithmetic():
        found = [model.lm(torch.cat(row)[None], use_cache=False).logits[0, len(row[0]) - 1:-1] for row in rows]
    return torch.stack(found).float()


def alone(model, prompts, completion):
    """The log-probabilities of completions, in the same way."""
    return naive_method(logits_alone(model, prompts, completion), completion)


def states_alone(model, prompts, completion):
    """The last hidden states before the tokens of completions, in the same way."""
    read = [model.lm.base_model(torch.cat(row)[None], use_cache=False) for row in zip(prompts, completion)]
    return torch.stack([out.last_hidden_state[0, len(prompt) - 1:-1] for out, prompt in zip(read, prompts)])


def learned(model, batch, completion, length=None):
    """Log-probabilities as learning computes them."""
    hidden = model.completion_hidden(batch, completion, length)
    return linear_log_prob(hidden, index=completion, **model.output_head()._asdict())


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
