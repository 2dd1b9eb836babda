import copy
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

import click
import torch
import transformers
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as hf_logging

from ding_common import ConfigError, describe
from ding_common.language_model import build_causal_lm

from . import shared_prompt
from .bands import divide
from .decoding import Decoding, PromptBatch
from .fast_linear import make_fast
from .output_head import OutputHead, measure_head
from .reading import PADDED, SHARED, Trial, choose, length_limit, start

UNLIMITED = 65536  # tokens of a row, where nothing says how many there can be
CALL = 64  # tokens that take as long as one more call of the model
_SLOWER = dict(
    padded='prompts are read in every row, which takes longer',
    by_length='prompts are read in every row, those of each length apart, which takes longer',
    reread='every row is read whole for every token, which takes much longer',
)
_REFERENCE = 'without the adapters the model must be the pretrained one, which is the reference'


@MODEL_REGISTRY.register('causal_lm')
class CausalLM(nn.Module):
    """
    Overview:
        A causal language model of ``transformers`` as DI-engine's policies build it: by name, from a config. Prompts \
        are read once however many rows continue them, by sampling and learning alike, where the architecture allows \
        it. Always in evaluation mode: dropout would make the sampled log-probabilities others than the learned ones.
    Interfaces:
        ``start``, ``arithmetic``, ``completion_logits``, ``completion_hidden``, ``output_head``, ``limit_vocabulary``,
        ``save_pretrained``, ``from_model``
    """

    def __init__(
            self,
            pretrained: Optional[str] = None,
            config: Optional[dict] = None,
            dtype: str = 'float32',
            attn_implementation: Optional[str] = None,
            lora: Optional[dict] = None,
            save_merged: bool = False,
            gradient_checkpointing: bool = False,
            onednn: bool = True,
            autocast: Optional[str] = None,
    ) -> None:
        """
        Overview:
            Load a pretrained model, or make a random one.
        Arguments:
            - pretrained (:obj:`Optional[str]`): Folder or hub name for ``AutoModelForCausalLM.from_pretrained``.
            - config (:obj:`Optional[dict]`): ``model_type`` and the arguments of that architecture's config class; \
                the weights are random. Exactly one of ``pretrained`` and ``config``.
            - dtype (:obj:`str`): ``float32``, ``bfloat16``, or ``float16`` for evaluation and below adapters.
            - attn_implementation (:obj:`Optional[str]`): As ``transformers`` takes it.
            - lora (:obj:`Optional[dict]`): Arguments of ``peft.LoraConfig`` (extra ``lora``), such as ``r`` and \
                ``lora_alpha``: adapters are trained, checkpointed and saved, the pretrained weights stay.
            - save_merged (:obj:`bool`): With ``lora``, whether ``save_pretrained`` writes the whole model with the \
                adapters in it.
            - gradient_checkpointing (:obj:`bool`): Whether learning keeps one layer's activations at a time and \
                computes the others again: less memory, more time.
            - onednn (:obj:`bool`): Whether linear layers in float32 on a processor are computed by oneDNN, which is \
                up to twice as fast; the sums are the same but for their order.
            - autocast (:obj:`Optional[str]`): ``bfloat16``: layers compute in it, while weights, their updates, the \
                output layer and the loss keep ``dtype``; faster where the machine multiplies bfloat16 \
                (docs/speed.md). With ``lora`` the weights of linear layers are kept in both types.
        Raises:
            - ConfigError: If a value cannot be used; the message names the key.
        """
        super().__init__()
        for name, value in (('save_merged', save_merged), ('gradient_checkpointing', gradient_checkpointing), ('onednn',
                                                                                                               onednn)):
            if not isinstance(value, bool):
                raise ConfigError(f'policy.model.{name} = {value!r}: must be True or False.')
        if autocast not in (None, 'bfloat16'):
            raise ConfigError(f"policy.model.autocast = {autocast!r}: must be None or 'bfloat16'.")
        if save_merged and lora is None:
            raise ConfigError('policy.model.save_merged = True: needs policy.model.lora.')
        if lora is not None and pretrained is None:
            raise ConfigError(
                f'policy.model.lora = {lora!r}: needs policy.model.pretrained; adapters of random weights, which are '
                'not saved, would be worth nothing.'
            )
        self._own(build_causal_lm(pretrained, config, dtype, attn_implementation, 'policy.model'))
        if lora is not None:
            self._peft = (_with_adapters(self.lm, lora), )  # in a tuple: its modules are those of ``lm``
            self.eval()  # the adapters too
        self._save_merged = save_merged
        self._autocast = autocast is not None
        if onednn or self._autocast:  # under autocast oneDNN is not used
            make_fast(self.trunk)
        if gradient_checkpointing:
            self._checkpoint_layers()

    @classmethod
    def from_model(cls, lm: PreTrainedModel) -> 'CausalLM':
        """
        Overview:
            Wrap a model made in memory.
        Arguments:
            - lm (:obj:`PreTrainedModel`): A causal language model of ``transformers``.
        """
        self = cls.__new__(cls)
        nn.Module.__init__(self)
        self._own(lm)
        return self

    def _own(self, lm: PreTrainedModel) -> None:
        self.lm = lm
        self._tokens = self.vocab_size
        self._measured: Tuple = (None, None)  # an output layer, and its scale and soft cap
        self._peft: Tuple = ()
        self._save_merged = False
        self._autocast = False
        self._layers: List[nn.Module] = []  # those that learning computes again
        self._longest: Optional[int] = None  # tokens of a prompt and its completion
        self._trial: Optional[Trial] = None
        self.eval()

    def train(self, mode: bool = True) -> 'CausalLM':
        return super().train(False)  # see the class docstring

    @property
    def has_adapters(self) -> bool:
        """Whether only adapters are trained."""
        return bool(self._peft)

    @property
    def exact_arithmetic(self) -> bool:
        """Whether layers compute in float32 or wider, where the order of sums changes last digits alone."""
        return not self._autocast and all(p.dtype in (torch.float32, torch.float64) for p in self.parameters())

    def without_adapters(self) -> ContextManager:
        """As long as it is entered, the model is the pretrained one."""
        return self._peft[0].disable_adapter() if self._peft else nullcontext()

    def state_dict(self, *args, **kwargs) -> Dict[str, Tensor]:
        """As of any module; with adapters theirs alone, the pretrained weights being where they came from."""
        state = super().state_dict(*args, **kwargs)
        if not self._peft:
            return state
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def load_state_dict(self, state_dict: Dict[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        if self._peft:
            missing = set(self.state_dict()) ^ set(state_dict)
            if missing:
                raise RuntimeError(f'the checkpoint is not one of these adapters: {sorted(missing)[0]} does not fit')
            strict = False
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _checkpoint_layers(self) -> None:
        self.lm.activation_checkpointing_enable(activation_checkpointing_kwargs=dict(use_reentrant=False))
        self._layers = [m for m in self.lm.modules() if isinstance(m, GradientCheckpointingLayer)]
        for layer in self._layers:  # those of its modules are off; here and there a layer has one of its own
            for name, value in vars(layer).items():
                if 'dropout' in name and isinstance(value, float):
                    setattr(layer, name, 0.0)
        if not self._layers:
            raise ConfigError(
                f'policy.model.gradient_checkpointing = True: {type(self.lm).__name__} has no layers that can do it.'
            )

    def limit_vocabulary(self, size: int) -> None:
        """
        Overview:
            Give logits for the first ``size`` tokens only. Many models have more, as padding of their output matrix, \
            than their tokenizer has tokens; those must be neither sampled nor learned.
        Arguments:
            - size (:obj:`int`): Number of tokens that the tokenizer has.
        """
        self._tokens = size

    def limit_length(self, tokens: int) -> None:
        """
        Overview:
            Tell how long rows can be, on which the way they are read depends; see ``reading``.
        Arguments:
            - tokens (:obj:`int`): Most tokens of a prompt and its completion together.
        Raises:
            - ConfigError: If a row's log-probabilities would depend on the other rows of its batch.
        """
        self.check_length(tokens)
        if tokens != self._longest:
            self._longest, self._trial = tokens, None

    def check_length(self, tokens: int) -> None:
        """
        Overview:
            Refuse rows so long that the architecture reads them otherwise.
        Arguments:
            - tokens (:obj:`int`): Of a prompt and its completion together.
        Raises:
            - ConfigError: If there are more than the architecture allows.
        """
        reason, most = length_limit(self.lm.config.get_text_config())
        if most is not None and tokens > most:
            raise ConfigError(
                f'policy.model: in {type(self.lm).__name__} {reason} beyond {most} tokens. A prompt and its completion '
                f'may have {tokens}. Lower env.max_prompt_length or env.max_new_tokens.'
            )

    @property
    def vocab_size(self) -> int:
        """Number of tokens V that the model has logits for."""
        return self.lm.config.get_text_config().vocab_size

    @property
    def max_positions(self) -> Optional[int]:
        """Longest prompt plus completion in tokens, None where the architecture sets no limit."""
        positions = getattr(self.lm.config.get_text_config(), 'max_position_embeddings', None)
        return positions if positions is not None and positions > 0 else None  # XLNet says -1

    @property
    def device(self) -> torch.device:
        return self.lm.device

    @property
    def trunk(self) -> nn.Module:
        """The model below its output layer."""
        trunk = self.lm.base_model
        if trunk is self.lm:  # an architecture that names it otherwise
            trunk = next((m for m in self.lm.children() if isinstance(m, PreTrainedModel)), trunk)
        return trunk

    @property
    def output_tokens(self) -> int:
        """Number of tokens that logits are given for, see ``limit_vocabulary``."""
        return self._tokens

    @property
    def reading(self) -> str:
        """The way in which rows are read, one of ``ding_grpo.model.reading.WAYS``; found by trying at the first use."""
        if self._trial is None:
            with self.without_adapters():
                self._trial = choose(self, self._longest or self.max_positions or UNLIMITED)
            if self._trial is None:  # results are NaN in every way; the policy reports where
                return PADDED
            if self._trial.way != SHARED:
                click.echo(f'{type(self.lm).__name__}: {_SLOWER[self._trial.way]} ({self._trial.reason})')
        return self._trial.way

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts are read once for all rows that continue them."""
        return self.reading == SHARED

    def reading_state(self) -> Dict[str, Any]:
        """
        Overview:
            For a checkpoint: the way in which rows are read, and what the choice depends on.
        """
        return dict(way=self.reading, **self._reading_depends_on())

    def load_reading_state(self, state: Dict[str, Any]) -> None:
        """
        Overview:
            Read rows as the run of a checkpoint does, unless what the choice depends on has changed.
        Arguments:
            - state (:obj:`Dict[str, Any]`): From ``reading_state``.
        """
        if state != dict(way=state['way'], **self._reading_depends_on()):
            return
        if state['way'] != SHARED or shared_prompt.install(self.lm):
            self._trial = Trial(state['way'], 'as in the checkpoint')

    def _reading_depends_on(self) -> Dict[str, Any]:
        attention = self.lm.config._attn_implementation.removeprefix(f'{shared_prompt.NAME}_')
        return dict(attention=attention, longest=self._longest, transformers=transformers.__version__)

    def arithmetic(self) -> ContextManager:
        """
        Overview:
            As long as it is entered, layers compute in the type that ``autocast`` names. ``completion_hidden`` and \
            ``completion_logits`` enter it themselves; who decodes does so around all steps, so that weights are \
            converted once.
        """
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def start(self, prompts: PromptBatch, max_new_tokens: int = 0) -> Decoding:
        """
        Overview:
            Read prompts, to go on from there token by token without gradients.
        Arguments:
            - prompts (:obj:`PromptBatch`): P distinct prompts for B rows.
            - max_new_tokens (:obj:`int`): Most tokens that follow them.
        Returns:
            - decoding (:obj:`Decoding`): One line a row; see there.
        """
        self.check_length(prompts.ids.shape[1] + max_new_tokens)
        return start(self, self.reading, prompts)

    def completion_logits(self, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor] = None) -> Tensor:
        """
        Overview:
            Logits of given completions, differentiable. Each distinct prompt is read once, with its gradient; the \
            result is that of reading it in every row.
        Arguments:
            - prompts (:obj:`PromptBatch`): P distinct prompts for B rows.
            - completion (:obj:`torch.LongTensor`): Tokens of the rows, padded on the right with any valid token.
            - length (:obj:`Optional[torch.LongTensor]`): How many of a row's are needed; behind them the result may \
                be anything. None: all.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits of each completion token.
        Shapes:
            - completion (:obj:`torch.LongTensor`): :math:`(B, S)`
            - length (:obj:`torch.LongTensor`): :math:`(B, )`
            - logit (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        """
        if self.shares_prompts:
            return self.output_head().logits(self.completion_hidden(prompts, completion, length))
        self.check_length(prompts.ids.shape[1] + completion.shape[1])
        with self.arithmetic():
            return self._plain(self.lm, 'logits', prompts, completion, length)[..., :self._tokens]

    def completion_hidden(self, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor] = None) -> Tensor:
        """
        Overview:
            What ``completion_logits`` makes logits of, by ``output_head``: one vector a token in place of V numbers.
        Arguments:
            - prompts (:obj:`PromptBatch`): As there.
            - completion (:obj:`torch.LongTensor`): As there.
            - length (:obj:`Optional[torch.LongTensor]`): As there.
        Returns:
            - hidden (:obj:`torch.FloatTensor`): The last hidden state before each completion token.
        Shapes:
            - completion (:obj:`torch.LongTensor`): :math:`(B, S)`
            - length (:obj:`torch.LongTensor`): :math:`(B, )`
            - hidden (:obj:`torch.FloatTensor`): :math:`(B, S, H)`
        """
        self.check_length(prompts.ids.shape[1] + completion.shape[1])
        with self.arithmetic():
            if self.shares_prompts:
                hidden = self._shared_hidden(prompts, completion, length)
            else:
                hidden = self._plain(self.trunk, 'last_hidden_state', prompts, completion, length)
            return hidden.to(self.lm.dtype)

    def _shared_hidden(
            self,
            prompts: PromptBatch,
            completion: Tensor,
            length: Optional[Tensor] = None,
            check_mask: Optional[Callable] = None
    ) -> Tensor:
        rows, columns = completion.shape
        if length is None:
            length = torch.full((rows, ), columns, device=completion.device)
        order = prompts.row.argsort(stable=True)
        row, given = prompts.row[order], (length - 1).clamp(min=0)[order]  # the last token is predicted, not read
        of_prompts, position = prompts.mask.bool(), prompts.mask.cumsum(1) - 1
        prompt_length, step = prompts.length, torch.arange(columns, device=completion.device)
        is_read = step < given.unsqueeze(1)  # (B, S)
        hidden = self._with_layers(
            shared_prompt.read,
            self.trunk,
            torch.cat([prompts.ids[of_prompts], completion[order][is_read]]),
            torch.cat([position[of_prompts], (prompt_length[row].unsqueeze(1) + step)[is_read]]),
            shared_prompt.Whole(prompt_length, row, given),
            check_mask,
        )  # (N, H)
        start, last = prompt_length.sum() + given.cumsum(0) - given, prompt_length.cumsum(0)[row] - 1
        before = torch.minimum(step, given.unsqueeze(1))  # (B, S): tokens of the row in front of each
        where = torch.empty_like(completion)
        where[order] = torch.where(before == 0, last.unsqueeze(1), start.unsqueeze(1) + before - 1)
        return hidden.index_select(0, where.flatten()).view(rows, columns, -1)

    def _plain(
            self, read: nn.Module, result: str, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor]
    ) -> Tensor:
        """
        Overview:
            Every row whole, padded on the right, which no causal model sees; rows of similar length together.
        Arguments:
            - read (:obj:`nn.Module`): The model, or its trunk.
            - result (:obj:`str`): Which of its results, ``logits`` or ``last_hidden_state``.
        Returns:
            - out (:obj:`torch.Tensor`): The result before each completion token, :math:`(B, S, *)`.
        """
        rows, columns = completion.shape
        given = torch.full((rows, ), columns) if length is None else length.clamp(min=1).cpu()
        of_prompt = prompts.length.cpu()[prompts.row.cpu()]
        total = (of_prompt + given - 1).tolist()
        parts, order = [], []
        for chosen in divide([(n, ) for n in total], lambda count, n: CALL + count * n):
            whole = [torch.cat([prompts.prompt(int(prompts.row[i])), completion[i, :given[i] - 1]]) for i in chosen]
            out = self._with_layers(read, input_ids=pad_sequence(whole, batch_first=True), use_cache=False)[result]
            step = torch.arange(columns)
            at = of_prompt[chosen].unsqueeze(1) - 1 + torch.minimum(step, given[chosen].unsqueeze(1) - 1)  # (b, S)
            parts.append(out[torch.arange(len(chosen)).unsqueeze(1), at.to(out.device)])
            order += chosen
        return torch.cat(parts)[torch.tensor(order, device=completion.device).argsort()]

    def _with_layers(self, function: Callable, *args, **kwargs) -> Any:
        """Call it; with a gradient, layers to be computed again know it."""
        again = self._layers if torch.is_grad_enabled() else []
        for layer in again:
            layer.training = True  # of the layer itself, which is what asks for it: no dropout inside
        try:
            return function(*args, **kwargs)
        finally:
            for layer in again:
                layer.training = False

    def output_head(self) -> OutputHead:
        """
        Overview:
            How this model's logits come of its hidden states, for the tokens that ``limit_vocabulary`` leaves.
        Returns:
            - head (:obj:`OutputHead`): See there.
        Raises:
            - ConfigError: If it is none of the ways that ``linear_log_prob`` knows.
        """
        layer = self.lm.get_output_embeddings()
        if self._measured[0] is not layer:
            with torch.autocast(self.device.type, enabled=False):
                self._measured = (layer, measure_head(self.lm, self.trunk))
        bias = None if layer.bias is None else layer.bias[:self._tokens]
        return OutputHead(layer.weight[:self._tokens], bias, *self._measured[1])

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
            Write the folder that ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer.from_pretrained`` \
            load. The folder's generation defaults are greedy, stop at the tokenizer's end of sequence and \
            leave out what the tokenizer has no token for, so that plain ``generate`` gives what the evaluator saw, \
            whatever defaults the model came with.
        Arguments:
            - folder (:obj:`str`): Made if it is not there.
            - tokenizer (:obj:`Optional[PreTrainedTokenizerBase]`): Written beside the weights.
            - max_new_tokens (:obj:`Optional[int]`): Default length limit of ``generate``.
            - state_dict (:obj:`Optional[Dict[str, torch.Tensor]]`): Other weights, as ``self.state_dict()`` names \
                them; None writes the model's own.
            - eos_token_ids (:obj:`Sequence[int]`): Tokens that end a completion, if there are several.

        With adapters these alone are written, for ``peft`` and for ``AutoModelForCausalLM`` where it is installed, \
        or, with ``save_merged``, the whole model.
        """
        ids = {}
        if tokenizer is not None:
            ids = {name: getattr(tokenizer, name) for name in ('bos_token_id', 'eos_token_id', 'pad_token_id')}
            tokenizer.save_pretrained(folder)
        if len(eos_token_ids) > 1:
            ids['eos_token_id'] = list(eos_token_ids)
        for name, value in ids.items():
            setattr(self.lm.config, name, value)
        self.lm.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            suppress_tokens=list(range(self._tokens, self.vocab_size)) or None,
            **ids,
        )
        if self._peft and state_dict is not None:
            trained = {name: value.clone() for name, value in self.state_dict().items()}
            self.load_state_dict(state_dict)
            try:
                return self.save_pretrained(folder, tokenizer, max_new_tokens, None, eos_token_ids)
            finally:
                self.load_state_dict(trained)
        if state_dict is not None:
            state_dict = {name[len('lm.'):]: value for name, value in state_dict.items()}
        shown = hf_logging.is_progress_bar_enabled()
        hf_logging.disable_progress_bar()
        try:
            if self._peft and self._save_merged:
                copy.deepcopy(self._peft[0]).merge_and_unload().save_pretrained(folder)
            elif self._peft:
                self._peft[0].save_pretrained(folder)
                self.lm.generation_config.save_pretrained(folder)
            else:
                self.lm.save_pretrained(folder, state_dict=state_dict)
        finally:
            if shown:
                hf_logging.enable_progress_bar()


def _with_adapters(lm: PreTrainedModel, lora: dict) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("policy.model.lora: needs the extra: pip install 'ding-grpo[lora]'") from error
    if not isinstance(lora, dict):
        raise ConfigError(f'policy.model.lora = {lora!r}: must be a dict of arguments of peft.LoraConfig.')
    allowed = dict(
        lora_dropout=([0, 0.0], 'what is sampled and what is learned must be one distribution'),
        bias=(['none'], _REFERENCE),
        init_lora_weights=([True, False, 'gaussian', 'orthogonal'], _REFERENCE),
        inference_mode=([False], 'adapters are there to be trained'),
    )
    for key, (values, why) in allowed.items():
        if key in lora and lora[key] not in values:
            choice = ' or '.join(map(repr, dict.fromkeys(values)))
            raise ConfigError(f'policy.model.lora.{key} = {lora[key]!r}: must be {choice}; {why}.')
    try:
        return get_peft_model(lm, LoraConfig(task_type='CAUSAL_LM', **lora))
    except Exception as error:  # peft may raise anything over its arguments
        raise ConfigError(f'policy.model.lora = {dict(lora)!r}: {describe(error)}') from error
