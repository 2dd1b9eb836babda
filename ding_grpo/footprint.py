"""Memory of a run with a causal language model, by a formula for architectures like Llama: ``--check`` prints it."""
from typing import Any, Dict, Iterable, NamedTuple, Optional

from torch import Tensor

from .model import CausalLM
from .model.read.attention import kept_type

# How many numbers an optimizer keeps for a trained weight; Adafactor's rows and columns are few.
STATES = dict(AdamW=2, Adam=2, NAdam=2, RAdam=2, RMSprop=1, SGD=0, Adafactor=0)
MEBI = 2 ** 20


class Footprint(NamedTuple):
    """Bytes of the parts of a run, without the process and its libraries."""
    weights: int
    gradients: int
    optimizer: int
    reference: int
    activations: int
    keys: int  # and values
    divided: bool  # whether learning reads a mini-batch in several parts

    @property
    def total(self) -> int:
        """The most at a time. There are no activations when keys are kept, and gradients appear as the activations of \
        the first part of a mini-batch go."""
        learning = self.activations + self.gradients if self.divided else max(self.activations, self.gradients)
        return self.weights + self.optimizer + self.reference + max(learning, self.gradients + self.keys)

    def __str__(self) -> str:
        parts = ', '.join(f'{name} {size / MEBI:,.0f}' for name, size in list(self._asdict().items())[:-1] if size)
        return f'{self.total / MEBI:,.0f} MiB ({parts})'


def footprint(
        model: CausalLM,
        tokens: int,
        rows: int = 0,
        length: int = 0,
        optimizer: Dict[str, Any] = dict(type='AdamW'),
        reference: bool = False,
        divided: bool = True
) -> Optional[Footprint]:
    """The memory of a run, without a critic or a teacher of its own; None for other architectures and other optimizers.
    The weights of ``model`` may be on the device ``meta``. ``tokens``: that learning reads at a time; ``divided``:
    whether a mini-batch has more. ``rows``: that are sampled at a time, each with ``length`` more tokens.
    ``optimizer``: ``policy.learn.optimizer``. ``reference``: whether a KL needs a copy of the weights."""
    sizes = _Sizes.of(model)
    if sizes is None or optimizer['type'] not in STATES:
        return None
    trained, whole = _size(p for p in model.parameters()
                           if p.requires_grad), _size([*model.parameters(), *model.buffers()])
    converts = model.autocast_dtype is not None and model.lm.dtype is not model.autocast_dtype
    states = STATES[optimizer['type']] + sum(bool(optimizer.get(name)) for name in ('momentum', 'amsgrad'))
    return Footprint(
        weights=whole + whole // 2 if converts else whole,  # autocast keeps them in its type too
        gradients=trained,
        optimizer=0 if optimizer.get('offload') else trained * states,
        reference=whole if reference and not model.has_adapters else 0,
        activations=tokens * sizes.activations(model),
        keys=rows * length * sizes.keys,
        divided=divided,
    )


class _Sizes(NamedTuple):
    """Of a model like Llama."""
    layers: int
    hidden: int
    between: int  # in a gated unit
    heads: int  # of all queries together
    shared: int  # of all keys together
    rank: int  # of the adapters of all linear layers of a layer together
    number: int  # bytes of a factor of products
    kept: int  # bytes of a number of a key

    @classmethod
    def of(cls, model: CausalLM) -> Optional['_Sizes']:
        config = model.lm.config.get_text_config()
        names = ('num_hidden_layers', 'hidden_size', 'intermediate_size', 'num_attention_heads', 'num_key_value_heads')
        layers, hidden, between, heads, shared = (getattr(config, name, None) for name in names)
        found = [name for name, _ in model.named_modules()]
        alike = all(sum(x.endswith(name) for x in found) == layers for name in ('mlp.gate_proj', 'self_attn.k_proj'))
        if None in (layers, hidden, between, heads, shared) or not alike:
            return None
        size = getattr(config, 'head_dim', None) or hidden // heads
        rank = sum(len(p) for name, p in model.named_parameters() if '.lora_A.' in name) // layers
        factor = model.autocast_dtype or model.lm.dtype
        kept = kept_type(factor, model.device).itemsize
        return cls(layers, hidden, between, heads * size, shared * size, rank, factor.itemsize, kept)

    @property
    def keys(self) -> int:
        """Bytes of keys and values of a token."""
        return 2 * self.layers * self.shared * self.kept

    def activations(self, model: CausalLM) -> int:
        """Bytes that a token needs for the backward pass: two norms with their results, queries, keys, values and
        result of the attention, and the three factors of the gated unit."""
        wide = model.lm.dtype.itemsize * self.hidden  # norms and what is added up keep the type of the weights
        factors = 2 * self.hidden + 2 * self.heads + 2 * self.shared + 3 * self.between + self.rank
        layer = 2 * wide + factors * self.number
        return 3 * wide + (self.layers * wide + layer if model.recomputes else self.layers * layer)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
