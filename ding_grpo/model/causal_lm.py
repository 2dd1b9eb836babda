from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn
from transformers import PreTrainedModel

from ding_common import ConfigError
from ding_common.hub.language_model import build_causal_lm

from .autocast import Autocast
from .export import replaced_weights, save_folder
from .fast_linear import make_fast
from .fused import fuse
from .lora import add_adapters, check_base
from .quantized import check_adapters, check_quantize, packing, quantize_linear
from .read.completions import States, read_shared, read_unshared
from .read.decoding import PADDED, SHARED, Decoding, start
from .read.output_head import OutputHead
from .read.packed_row import install
from .read.prompts import PromptBatch
from .recompute import recomputed_layers, recomputing
from .trial.choose import Trial, facts_of_way, find_way
from .trial.length_limit import check_length
from .trial.output_layer import measure_head
from .trunk import trunk_of


@MODEL_REGISTRY.register('causal_lm')
class CausalLM(nn.Module):
    """
    Overview:
        A causal language model of ``transformers``, registered for DI-engine's configs. If the architecture allows \
        it, sampling and learning read a prompt once for all rows that continue it (``ding_grpo.model.read``). The \
        model is always in evaluation mode, because with dropout sampler and learner would compute different \
        log-probabilities.
    Arguments:
        - pretrained (:obj:`Optional[str]`): Folder or hub name for ``AutoModelForCausalLM.from_pretrained``, or \
            the name of a packaged model (docs/tutorials/hugging_face_model.md).
        - config (:obj:`Optional[dict]`): ``model_type`` and arguments of the architecture's config class, for \
            random weights. Exactly one of ``pretrained`` and ``config`` is required.
        - dtype (:obj:`str`): ``float32``, ``bfloat16``, or ``float16`` (only for evaluation or with ``lora``).
        - attn_implementation (:obj:`Optional[str]`): As in ``transformers``.
        - lora (:obj:`Union[dict, str, None]`): Arguments of ``peft.LoraConfig`` (extra ``lora``), such as ``r`` and \
            ``lora_alpha``, or a folder with adapters, which are trained further. Adapters are trained and saved; \
            the pretrained weights do not change.
        - save_merged (:obj:`bool`): With ``lora``, whether to save the whole model with merged adapters.
        - gradient_checkpointing (:obj:`bool`): Whether learning keeps the activations of one layer at a time, \
            which needs less memory and more time.
        - onednn (:obj:`bool`): Whether oneDNN computes linear layers in float32 on a CPU, except with AVX2 alone. \
            It is up to twice as fast with AVX-512; only the order of the sums differs.
        - autocast (:obj:`Optional[str]`): With ``bfloat16``, layers compute in bfloat16; weights, updates, output \
            layer and loss keep ``dtype``. ``auto``: the same if the device multiplies bfloat16, otherwise without \
            autocast. With ``lora``, the weights of linear layers are stored in both types.
        - autocast_output (:obj:`bool`): Whether ``autocast`` includes the output layer, with sums in float32. Set \
            it to True on a GPU, where this layer otherwise takes more time than the others (docs/guides/gpu.md). A \
            CPU gains nothing.
        - cuda_graphs (:obj:`bool`): Whether sampling on a GPU records the operations of a token and launches them \
            together (docs/guides/gpu.md). A CPU computes as without it.
        - gguf_file (:obj:`Optional[str]`): A GGUF file of ``pretrained``. Its weights are converted to ``dtype``, \
            and saved as an ordinary folder.
        - quantize (:obj:`Optional[str]`): With ``lora``, store the frozen weights of linear layers in ``4bit`` (NF4) \
            or ``8bit`` (extra ``quantize``). They are widened at each call, which takes time. Weights of \
            safetensors files become small as they are read; other files are read whole first, and so is a \
            ``pretrained`` that contains adapters, to merge them.
    Raises:
        - ConfigError: If a value is invalid; the message names the key.
    """

    def __init__(
            self,
            pretrained: Optional[str] = None,
            config: Optional[dict] = None,
            dtype: str = 'float32',
            attn_implementation: Optional[str] = None,
            lora: Union[dict, str, None] = None,
            save_merged: bool = False,
            gradient_checkpointing: bool = False,
            onednn: bool = True,
            autocast: Optional[str] = None,
            autocast_output: bool = False,
            cuda_graphs: bool = False,
            gguf_file: Optional[str] = None,
            quantize: Optional[str] = None,
    ) -> None:
        super().__init__()
        flags = dict(
            save_merged=save_merged,
            gradient_checkpointing=gradient_checkpointing,
            onednn=onednn,
            autocast_output=autocast_output,
            cuda_graphs=cuda_graphs
        )
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise ConfigError(f'policy.model.{name} = {value!r}: must be True or False.')
        arithmetic = Autocast(autocast, autocast_output)
        arithmetic.check()
        check_base(lora, save_merged, pretrained, gguf_file)
        check_quantize(quantize, lora, save_merged)
        reading = nullcontext() if quantize is None else packing(quantize, lora)
        self._wrap(build_causal_lm(pretrained, config, dtype, attn_implementation, 'policy.model', gguf_file, reading))
        if lora is not None:
            self._peft = (add_adapters(self.lm, lora), )  # a tuple hides it from nn.Module: ``lm`` has its modules
            self.eval()  # includes the adapters
        if quantize is not None:
            check_adapters(self._peft[0].active_peft_config, quantize)
            quantize_linear(self.lm, self.trunk, quantize)
        fuse(self.trunk)  # compares numbers, which weights that become small have only now
        self._save_merged, self._cuda_graphs, self.autocast = save_merged, cuda_graphs, arithmetic
        if onednn or autocast is not None:
            make_fast(self.trunk, onednn)
        if gradient_checkpointing:
            self._layers = recomputed_layers(self.lm)

    @classmethod
    def from_model(cls, lm: PreTrainedModel) -> 'CausalLM':
        """Wrap a causal language model of ``transformers``."""
        self = cls.__new__(cls)
        nn.Module.__init__(self)
        self._wrap(lm)
        return self

    def _wrap(self, lm: PreTrainedModel) -> None:
        self.lm = lm
        self.autocast = Autocast()
        self.output_tokens = self.vocab_size  # number of tokens that have logits
        self._peft: Tuple = ()
        self._save_merged = self._cuda_graphs = False
        self._layers: List[nn.Module] = []  # the layers that learning recomputes
        self._longest: Optional[int] = None  # maximum number of tokens of a prompt and its completion
        self._trial: Optional[Trial] = None  # of the way in which rows of so many tokens are read
        self._measured: Tuple = (None, None)  # the output layer; its scale and soft cap
        self.eval()

    def train(self, mode: bool = True) -> 'CausalLM':
        return super().train(False)  # see the class docstring

    @property
    def has_adapters(self) -> bool:
        """Whether only adapters are trained."""
        return bool(self._peft)

    @property
    def peft(self) -> Optional[nn.Module]:
        """The model as ``peft`` wraps it; None without adapters."""
        return self._peft[0] if self._peft else None

    @property
    def autocast_dtype(self) -> Optional[torch.dtype]:
        """The type in which layers multiply, None for that of their weights."""
        return self.autocast.dtype_on(self.device.type)

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether decoding records the operations of a step, see ``StepGraph``."""
        return self._cuda_graphs and self.device.type == 'cuda'

    def arithmetic_notice(self, key: str = 'policy.model') -> Optional[str]:
        """A line for the log about bfloat16, see ``Autocast.notice``; ``key`` is the model's config key."""
        half = any(p.dtype is torch.bfloat16 for p in self.parameters())
        return self.autocast.notice(half, self.device.type, key)

    @property
    def exact_arithmetic(self) -> bool:
        """Whether layers compute in float32 or wider, where the order of sums changes only the last digits."""
        return self.autocast_dtype is None and all(p.dtype in (torch.float32, torch.float64) for p in self.parameters())

    def without_adapters(self) -> ContextManager:
        """Context in which the model is the pretrained one."""
        return self._peft[0].disable_adapter() if self._peft else nullcontext()

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """Context in which layers compute in the type of their weights."""
        before, self.autocast = self.autocast, Autocast()
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        finally:
            self.autocast = before

    def state_dict(self, *args, **kwargs) -> Dict[str, Tensor]:
        """The weights; with adapters, the adapters' only, because the pretrained weights can be loaded again."""
        state = super().state_dict(*args, **kwargs)
        if not self._peft:
            return state
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def load_state_dict(self, state_dict: Dict[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        if self._peft:
            missing = set(self.state_dict()) ^ set(state_dict)
            if missing:
                raise RuntimeError(f'the checkpoint is not one of these adapters: {sorted(missing)[0]} is in one only')
            strict = False
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def limit_vocabulary(self, size: int) -> None:
        """Compute logits for the first ``size`` tokens only, those of the tokenizer. Many models pad their output
        matrix; the padding must be neither sampled nor learned."""
        self.output_tokens = size

    def limit_length(self, tokens: int) -> None:
        """Set the maximum number of tokens of a prompt and its completion, on which ``way`` depends, and check it."""
        self.check_length(tokens)
        if tokens != self._longest:
            self._longest, self._trial = tokens, None

    def check_length(self, tokens: int) -> None:
        """Raise a ``ConfigError`` if a prompt and its completion have more tokens than the architecture allows."""
        check_length(self.lm, tokens)

    @property
    def vocab_size(self) -> int:
        """Vocabulary size V of the model."""
        return self.lm.config.get_text_config().vocab_size

    @property
    def max_positions(self) -> Optional[int]:
        """Maximum number of tokens of a prompt and its completion; None if the architecture has no limit."""
        positions = getattr(self.lm.config.get_text_config(), 'max_position_embeddings', None)
        return positions if positions is not None and positions > 0 else None  # XLNet has -1

    @property
    def device(self) -> torch.device:
        return self.lm.device

    @property
    def trunk(self) -> nn.Module:
        """The model below its output layer."""
        return trunk_of(self.lm)

    @property
    def way(self) -> str:
        """How rows are read, one of ``ding_grpo.model.read.decoding.WAYS``. A trial at the first use determines it."""
        self._trial = self._trial or find_way(self, self._longest)
        return self._trial.way if self._trial else PADDED  # every way gives NaN; the policy reports where

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts are read once for all rows that continue them."""
        return self.way == SHARED

    def way_state(self) -> Dict[str, Any]:
        """How rows are read, and what this depends on, for a checkpoint; empty if a resumed run should try again."""
        state = dict(way=self.way, **facts_of_way(self, self._longest))
        return state if self._trial is None or self._trial.certain else {}

    def load_way_state(self, state: Dict[str, Any]) -> None:
        """Read rows as the checkpoint's run did, unless what this depends on has changed."""
        if state and state == dict(way=state['way'], **facts_of_way(self, self._longest)):
            if state['way'] != SHARED or install(self.lm):
                self._trial = Trial(state['way'])

    def arithmetic(self) -> ContextManager:
        """Context in which layers compute in the type of ``autocast``. The methods ``completion_*`` enter it
        themselves. Decoding enters it once around all steps, so that weights are converted once."""
        dtype = self.autocast_dtype
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def start(self, prompts: PromptBatch, max_new_tokens: int = 0) -> Decoding:
        """Read prompts, to continue them without gradients, token by token and by at most ``max_new_tokens``."""
        self.check_length(prompts.ids.shape[1] + max_new_tokens)
        return start(self, self.way, prompts)

    def completion_logits(self, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor] = None) -> Tensor:
        """Logits (B, S, V) of given completions, with gradients. If the model shares prompts, each distinct prompt is
        read once. The result is the same as when each row reads its prompt. ``completion`` (B, S) are the tokens of the
        rows, padded on the right with any valid token. ``length`` (B, ): number of tokens needed from each row, after
        which the result is arbitrary; None for all."""
        if self.shares_prompts:
            return self.output_head().logits(self.completion_hidden(prompts, completion, length))
        self.check_length(prompts.ids.shape[1] + completion.shape[1])
        with self.arithmetic():
            return read_unshared(self, self.lm, 'logits', prompts, completion, length)[..., :self.output_tokens]

    def completion_states(self, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor] = None) -> States:
        """The last hidden states before completion tokens: one vector per token instead of V logits, which
        ``output_head`` computes from it. If the model shares prompts, tokens that follow the same ones have one state.
        Arguments as of ``completion_logits``."""
        self.check_length(prompts.ids.shape[1] + completion.shape[1])
        with self.arithmetic():
            if self.shares_prompts:
                states = read_shared(self, prompts, completion, length)
            else:
                states = States.of(read_unshared(self, self.trunk, 'last_hidden_state', prompts, completion, length))
            return states._replace(hidden=states.hidden.to(self.lm.dtype))

    def completion_hidden(self, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor] = None) -> Tensor:
        """The states of ``completion_states`` for each token, (B, S, H)."""
        return self.completion_states(prompts, completion, length).of_tokens()

    @property
    def recomputes(self) -> bool:
        """Whether learning keeps the activations of one layer at a time."""
        return bool(self._layers)

    def recomputing(self) -> ContextManager:
        """Context for reading, see ``recompute.recomputing``."""
        return recomputing(self._layers)

    def output_head(self) -> OutputHead:
        """How the logits are computed from hidden states, for the tokens that ``limit_vocabulary`` keeps. Raises a
        ``ConfigError`` if ``linear_log_prob`` does not support the output layer."""
        layer = self.lm.get_output_embeddings()
        if self._measured[0] is not layer:  # at the first use, or replaced by another layer
            self._measured = layer, measure_head(self)
        weight, bias, tokens = layer.weight, layer.bias, self.output_tokens
        if tokens < len(weight):  # otherwise a slice would only copy its gradient
            weight, bias = weight[:tokens], None if bias is None else bias[:tokens]
        rounded = self.autocast.output and self.autocast_dtype is not None
        return OutputHead(weight, bias, *self._measured[1], rounded)

    def check_decoding(self) -> None:
        """Raise a ``ConfigError`` if a key changes how shared prompts are continued, and the model has none."""
        keys = dict(autocast_output=self.autocast.output, cuda_graphs=self._cuda_graphs)
        for key in (key for key, value in keys.items() if value and not self.shares_prompts):
            raise ConfigError(
                f'policy.model.{key} = True: {type(self.lm).__name__} cannot share prompts, and samples by its own '
                'layers and cache. Set it to False.'
            )

    def save_pretrained(
            self,
            folder: str,
            tokenizer: Optional[object] = None,
            max_new_tokens: Optional[int] = None,
            state_dict: Optional[Dict[str, Tensor]] = None,
            eos_token_ids: Sequence[int] = (),
    ) -> None:
        """
        Overview:
            Save a folder for ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer.from_pretrained``. With \
            adapters, the folder contains only them, for ``peft`` and for ``AutoModelForCausalLM`` with peft \
            installed, or with ``save_merged`` the whole model. Its generation defaults are those of the model that it \
            started from, see ``saved_generation_config``; they stop at the end-of-sequence tokens and suppress tokens \
            that the tokenizer does not have. Greedy ``generate`` with the training's length limit then returns the \
            evaluator's completions of one turn, computed without autocast. Not saved are options that change greedy \
            completions too: a bias of tokens, a repetition penalty, a grammar, and ``env.stop``.
        Arguments:
            - state_dict (:obj:`Optional[Dict[str, torch.Tensor]]`): As of ``self.state_dict()``; None for its own.
            - eos_token_ids (:obj:`Sequence[int]`): Tokens that end a completion, if there are several.
        """
        if self._peft and state_dict is not None:  # peft can only save the model's current weights
            with replaced_weights(self, state_dict):
                return self.save_pretrained(folder, tokenizer, max_new_tokens, None, eos_token_ids)
        save_folder(self, folder, tokenizer, max_new_tokens, state_dict, eos_token_ids, self._save_merged)
