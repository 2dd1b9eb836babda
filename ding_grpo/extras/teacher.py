"""On-policy distillation: a teacher of the policy's own rows (``policy.teacher``), and what it adds to an update."""
from dataclasses import replace
from typing import Any, Dict, Optional, Tuple

import click
import torch
from torch import Tensor
from transformers import AutoTokenizer

from ding_common import ConfigError, describe, parallel
from ding_common.hub.loading import quiet_hub
from ding_common.hub.pretrained import Pretrained
from ding_grpo.act.critic import own_model
from ding_grpo.data.batch import Batch
from ding_grpo.data.diagnose import check_weights
from ding_grpo.learn.extra_loss import ExtraLoss, Setting
from ding_grpo.model import PromptBatch
from ding_grpo.model.read.completions import States
from ding_grpo.model.read.output_head import OutputHead
from ding_grpo.rl_utils import (
    LinearOutput, distillation_data, distillation_error, linear_divergence, linear_log_prob, sampled_divergence
)


class Teacher:
    """A language model that is not trained. It reads the policy's rows; the loss is the divergence of the policy's
    distribution of each token from its own. If the vocabularies differ, both distributions are those over the tokens
    that they share by their strings, and a row counts up to its first token that the teacher lacks."""

    def __init__(self, arguments: Dict, cfg: Dict, device: torch.device) -> None:
        """``arguments`` are ``policy.teacher``, those of ``CausalLM``; ``cfg`` is ``policy.learn.distillation``. Raises
        ``ConfigError`` if the model cannot be built, or ``linear_log_prob`` does not support its output layer."""
        self._arguments, self._cfg = arguments, cfg
        self._where = f"policy.teacher.pretrained = {arguments['pretrained']!r}"
        self.model = own_model(arguments, 'policy.teacher', device).requires_grad_(False)
        check_weights(self.model, 'policy.teacher')
        try:
            self.model.output_head()
        except ConfigError as error:
            raise ConfigError(
                f'{self._where}: the output layer of {type(self.model.lm).__name__} is not a scaled or soft-capped '
                'product of its last hidden states, which distillation needs. Use another teacher.'
            ) from error
        self._ids: Optional[Tensor] = None  # (V, ): the teacher's ids of the policy's tokens, -1 for none
        self._bound: Any = None

    def bind(self, tokenizer: Any, vocab_size: int, longest: int) -> None:
        """Compare the vocabularies, and check that the teacher can read the longest row, a prompt and its completion.
        ``vocab_size`` is of the policy, ``tokenizer`` of the environment. Raises ``ConfigError`` if the vocabularies
        share too few tokens."""
        bound = tokenizer.get_vocab(), vocab_size, longest
        if self._bound == bound:  # by the collector, before the evaluator
            return
        positions = self.model.max_positions
        if positions is not None and longest > positions:
            raise ConfigError(f'{self._where}: has {positions} positions, but rows may have {longest} tokens.')
        self._ids = self._shared_ids(tokenizer, vocab_size)
        if self._ids is None:
            if self.model.vocab_size < vocab_size:
                raise ConfigError(
                    f'{self._where}: has no tokenizer and {self.model.vocab_size} tokens, the policy has {vocab_size}. '
                    'Save its tokenizer in the same folder; tokens are then compared by their strings.'
                )
            self.model.limit_vocabulary(vocab_size)
        try:
            self.model.limit_length(longest)
        except ConfigError as error:
            raise ConfigError(str(error).replace('policy.model', 'policy.teacher')) from error
        self._bound = bound

    def _shared_ids(self, tokenizer: Any, vocab_size: int) -> Optional[Tensor]:
        """The teacher's ids (V, ) of the policy's tokens, or None if each token has the same id."""
        own = _tokenizer_of(self._arguments, tokenizer)
        if own is None:
            return None
        found, ids = own.get_vocab(), torch.full((vocab_size, ), -1)
        for token, i in tokenizer.get_vocab().items():
            if i < vocab_size and found.get(token, vocab_size) < self.model.vocab_size:
                ids[i] = found[token]
        if tokenizer.eos_token_id is not None and own.eos_token_id is not None and ids[tokenizer.eos_token_id] < 0:
            ids[tokenizer.eos_token_id] = own.eos_token_id  # the same meaning, whatever its string
        shared = int((ids >= 0).sum())
        if torch.equal(ids, torch.arange(vocab_size)):
            return None
        if not self._cfg.exact or shared < 2:
            needs = 'policy.learn.distillation.exact = True' if shared >= 2 else 'a teacher with more of them'
            raise ConfigError(
                f'{self._where}: {shared} of the {vocab_size} tokens of env.tokenizer are in its vocabulary, some with '
                f'other ids. This needs {needs}.'
            )
        if parallel.rank() == 0:
            click.echo(
                f'{self._where}: has another vocabulary. Distributions are compared over the {shared} of {vocab_size} '
                'tokens of env.tokenizer that it shares; a row counts up to its first other token.'
            )
        return ids.to(self.model.device)

    def compare(
            self,
            batch: Batch,
            prompts: PromptBatch,
            logp: Tensor,
            states: States,
            head: OutputHead,
            temperature: float,
    ) -> Tuple[Tensor, Tensor]:
        """The divergence (B, S) of each token's distribution from the teacher's, differentiable and 0 in uncounted
        steps, and KL(policy || teacher) (B, S) without a gradient. ``logp`` (B, S), ``states`` before each token and
        the output layer ``head`` are the policy's. The teacher has the temperature of sampling too."""
        cfg, action, mask, of_teacher = self._cfg, batch.action, batch.weight, self.model.output_head()
        if self._ids is not None:
            prompts, action, mask = self._translate(batch, prompts)
            shared = (self._ids >= 0).nonzero().squeeze(1)
            head, of_teacher = _only(head, shared), _only(of_teacher, self._ids[shared])
        with torch.no_grad():
            read = self.model.completion_states(prompts, action, batch.length)
        return divergence_of(
            cfg, replace(batch, action=action, weight=mask), logp, states, head, read, of_teacher, temperature
        )

    def _translate(self, batch: Batch, prompts: PromptBatch) -> Tuple[PromptBatch, Tensor, Tensor]:
        """Prompts and tokens in the teacher's ids, arbitrary where it lacks them, and which tokens count."""
        of_prompts, of_action = self._ids[prompts.ids], self._ids[batch.action]
        known = ((of_prompts >= 0) | (prompts.mask == 0)).all(1)[prompts.row]  # (B, )
        before = torch.cat([known.unsqueeze(1), of_action[:, :-1] >= 0], dim=1)  # (B, S): the token before is known
        mask = batch.weight * before.long().cumprod(1)
        return prompts._replace(ids=of_prompts.clamp(min=0), tokens=None), of_action.clamp(min=0), mask


def divergence_of(
        cfg: Dict, batch: Batch, logp: Tensor, states: States, head: OutputHead, read: States, of_teacher: OutputHead,
        temperature: float
) -> Tuple[Tensor, Tensor]:
    """``Teacher.compare``, from the states that the teacher has read; ``cfg`` is ``policy.learn.distillation``. Tokens
    with the same states of both, such as the first ones of rows with the same prompts, have one divergence."""
    mask = batch.weight
    if cfg.exact:
        counted, number = mask != 0, len(read.hidden)
        pairs, pair = (states.state * number + read.state)[counted].unique(return_inverse=True)  # (U, ), (N, )
        own, other = states.hidden.index_select(0, pairs // number), read.hidden.index_select(0, pairs % number)
        found = linear_divergence(
            LinearOutput(own.unsqueeze(0), *head), LinearOutput(other.unsqueeze(0), *of_teacher), None, cfg.divergence,
            cfg.mix, temperature
        )
        return tuple(x.new_zeros(mask.shape).masked_scatter(counted, x[0].index_select(0, pair)) for x in found)
    of_tokens = linear_log_prob(
        read.hidden, state=read.state, index=batch.action, mask=mask, temperature=temperature, **of_teacher._asdict()
    )
    old = batch.logp_old if batch.logp_first is None else batch.logp_first
    counted = mask != 0
    logp, old = (x.masked_fill(~counted, 0) for x in (logp, old))
    return sampled_divergence(logp, old, of_tokens, cfg.divergence, cfg.mix)


def _only(head: OutputHead, tokens: Tensor) -> OutputHead:
    return head._replace(weight=head.weight[tokens], bias=None if head.bias is None else head.bias[tokens])


def _tokenizer_of(arguments: Dict, other: Any) -> Any:
    """The tokenizer beside a model; None without one, or if ``other`` was loaded from there."""
    pretrained, key = arguments['pretrained'], 'policy.teacher'
    found = Pretrained.locate(pretrained, arguments.get('gguf_file'), key)
    if other.name_or_path in (pretrained, found.path):
        return None
    try:
        with quiet_hub():
            return AutoTokenizer.from_pretrained(found.path, trust_remote_code=False, **found.options)
    except Exception as error:  # a folder without one, or a broken file, may raise anything
        if parallel.rank() == 0:
            click.echo(
                f'{key}.pretrained = {pretrained!r}: no tokenizer could be loaded ({describe(error)}). Its token ids '
                'are taken to be those of env.tokenizer.'
            )
        return None


class TeacherLoss(ExtraLoss):
    """The divergence from a teacher (``policy.teacher``), times its weight."""
    reads = ('divergence', 'teacher_kl')
    logged = ('teacher_loss', 'teacher_kl')

    def __init__(self, setting: Setting) -> None:
        cfg, device = setting.cfg, next(setting.model.parameters()).device
        self._actor, self._cfg = setting.actor, cfg.learn.distillation
        self._reduction = setting.loss_config.reduction
        self.teacher = Teacher(cfg.teacher, self._cfg, device)

    def heads(self) -> Dict[str, Any]:
        return dict(teacher=self.teacher)

    def bind(self, spec: Any) -> None:
        self.teacher.bind(spec.tokenizer, spec.vocab_size, spec.max_prompt_length + spec.max_tokens)

    def add(self, loss: Tensor, part: Batch, found: Any, tokens: Optional[float], share: float) -> Tensor:
        return loss + self._loss(part, found.divergence, found.teacher_kl, tokens)[0] * share

    def metrics(self, total_loss: float, batch: Batch, read: Dict[str, Tensor]) -> Dict[str, float]:
        loss, found = self._loss(batch, *(read[name] for name in self.reads))
        return dict(found, total_loss=total_loss + loss.item())

    def _loss(self, batch: Batch, divergence: Tensor, kl: Tensor, tokens: Optional[float] = None) -> Tuple:
        """The loss of rows, times its weight, and its metrics; ``divergence`` and ``kl`` (B, S) are of ``compare``."""
        data = distillation_data(divergence, kl, batch.weight)
        loss, info = distillation_error(data, self._reduction, self._actor.max_length, tokens)
        return self._cfg.weight * loss, dict(teacher_loss=loss.item(), teacher_kl=info.teacher_kl)
