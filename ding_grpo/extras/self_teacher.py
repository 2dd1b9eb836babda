"""
Self-distillation (``policy.teacher = dict(self=...)``): the teacher is the policy itself, which also reads a context
that the policy does not have, such as a right completion of the same group. On the policy's own rows, the loss is the
divergence of its distributions from those with the context.

    SDPO   https://arxiv.org/abs/2601.20802    OPSD   https://arxiv.org/abs/2601.18734
    SDFT   https://arxiv.org/abs/2601.19897
"""
import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_common import ConfigError
from ding_grpo.config.sections.supervised import self_teacher
from ding_grpo.data.batch import Batch
from ding_grpo.learn.extra_loss import Setting
from ding_grpo.model import PromptBatch
from ding_grpo.model.read.completions import States
from ding_grpo.model.read.output_head import OutputHead

from .teacher import TeacherLoss, divergence_of

STATE = 'self_teacher'  # in checkpoints
_SHOWN = dict(solution=('sibling', 'reference'), feedback=('feedback', ))  # the contexts that each text shows
MOST_TOKENS = 512  # of a context, unless the config says so


class ContextOfRows:
    """Finds what the teacher reads before each row of a batch."""

    def __init__(self, options: Dict, seed: int) -> None:
        """``options``: those of ``self_teacher``."""
        self._options, self._seed = options, seed
        kinds = options['context']
        self._kinds = (kinds, ) if isinstance(kinds, str) else tuple(kinds)
        self.contexts: Any = None  # of the environment
        self.part: Optional[str] = None  # of the reward, by which a row is right; None: the reward
        self.most = MOST_TOKENS

    def check(self) -> None:
        """Raise a ``ConfigError`` if the texts around contexts cannot be encoded."""
        solution, feedback = ('' if any(kind in self._kinds for kind in kinds) else None for kinds in _SHOWN.values())
        self.contexts.check(self.told(solution=solution, feedback=feedback), self._options['place'])

    def find(self, batch: Batch) -> List[Optional[Tensor]]:
        """Token ids (L, ) of the prompt with the context of each row; None without a context, or with one that has more
        than ``most`` tokens or cannot be encoded."""
        solution = self._siblings(batch) if 'sibling' in self._kinds else {}
        texts = [self._text(batch, row, solution.get(row)) for row in range(len(batch))]
        known = [row for row, text in enumerate(texts) if text]
        of_rows = [(int(batch.problem[row]), texts[row]) for row in known]
        each = list(dict.fromkeys(of_rows))
        ids = dict(zip(each, self.contexts.prompts(each, self._options['place']) if each else ()))
        found: List[Optional[Tensor]] = [None] * len(batch)
        for row, context in zip(known, of_rows):
            if ids[context] is not None and len(ids[context]) <= len(batch.prompts[row]) + self.most:
                found[row] = torch.tensor(ids[context])
        return found

    def _text(self, batch: Batch, row: int, solution: Optional[str]) -> str:
        index = int(batch.problem[row])
        if solution is None and 'reference' in self._kinds:
            solution = self.contexts.reference(index)
        feedback = self.contexts.feedback(index, self._completion(batch, row)) if 'feedback' in self._kinds else None
        return self.told(solution=solution, feedback=feedback)

    def told(self, **parts: Optional[str]) -> str:
        """The text of a context; empty without parts."""
        known = {name: text for name, text in parts.items() if text is not None}
        told = ''.join(self._options[name].replace(f'{{{name}}}', text) for name, text in known.items())
        return told and told + self._options['closing']

    def _siblings(self, batch: Batch) -> Dict[int, str]:
        """By row, a right completion of its group that is not its own. One is drawn for all rows of a group, so that
        their teacher reads one prompt, and a second one for itself."""
        value = batch.reward.sum(1) if self.part is None else batch.reward_parts[self.part]
        right = (value >= self._options['success_from']) & ~batch.failed & ~batch.truncated
        found = {}
        for group in batch.group.unique().tolist():
            rows = (batch.group == group).nonzero().squeeze(1).tolist()
            those = [row for row in rows if right[row]]
            if those:
                key = self._seed, int(batch.collect_iter[rows[0]]) + 1, int(batch.group_id[rows[0]]) + 1
                drawn = np.random.default_rng(key).permutation(len(those))[:2]
                texts = [self._completion(batch, those[i]) for i in drawn]
                found.update((row, texts[0]) for row in rows if row != those[drawn[0]])
                found.update({those[drawn[0]]: text for text in texts[1:]})
        return found

    def _completion(self, batch: Batch, row: int) -> str:
        return self.contexts.completion(batch.action[row, :int(batch.length[row])].tolist())


class SelfTeacherLoss(TeacherLoss):
    """The divergence from the policy with a context, times its weight. Rows without a context add nothing."""

    def __init__(self, setting: Setting) -> None:
        cfg = setting.cfg
        self._actor, self._cfg, self._options = setting.actor, cfg.learn.distillation, self_teacher(cfg.teacher)
        self._reduction, self._model = setting.loss_config.reduction, setting.model
        self._rows = ContextOfRows(self._options, setting.actor.seed)
        self._kind = self._options['self']
        # with adapters, the policy at the start is the model without them
        self._copies = self._kind == 'ema' or (self._kind == 'start' and not self._model.has_adapters)
        self._copy: Optional[nn.Module] = None

    def heads(self) -> Dict[str, Any]:
        return dict(teacher=self)

    def bind(self, spec: Any) -> None:
        longest, most = spec.max_prompt_length + spec.max_tokens, self._options['most_tokens']
        room = (self._model.max_positions or longest + MOST_TOKENS) - longest
        if room < (most or 1):
            raise ConfigError(
                f'policy.teacher.most_tokens = {most}: policy.model has positions for {room} tokens more than the '
                f'{longest} of a row. Lower it, or env.max_prompt_length.'
            )
        self._rows.most = min(MOST_TOKENS, room) if most is None else most
        self._model.limit_length(longest + self._rows.most)
        contexts = getattr(spec, 'contexts', None)
        if contexts is None:  # of an evaluation
            return
        if spec.max_turns > 1 or spec.trajectories:
            raise ConfigError(
                f"policy.teacher.self = {self._kind!r}: not available with several turns "
                f'(env.max_turns = {spec.max_turns}). Use a teacher with pretrained.'
            )
        self._rows.contexts, self._rows.part = contexts, spec.return_part
        self._rows.check()

    def begin(self, update: int) -> None:
        if self._kind == 'ema':
            with torch.no_grad():
                for mean, weight in zip(self._copy.parameters(), self._model.parameters()):
                    mean.lerp_(weight, self._options['update_rate'])

    def prepare(self, batch: Batch, read_rows: Callable) -> Batch:
        if self._rows.contexts is None:
            raise ConfigError(
                f"policy.teacher.self = {self._kind!r}: the environment has no contexts. Use token_env with "
                'a task of one turn.'
            )
        if self._copies and self._copy is None:
            self._copy = copy.deepcopy(self._model).requires_grad_(False)
        return replace(batch, context=self._rows.find(batch))

    def of_batch(self, learned: Batch) -> Dict[str, float]:
        known = [context is not None for context in learned.context]
        return dict(context_rows=sum(known) / max(len(known), 1))

    def compare(
            self, batch: Batch, prompts: PromptBatch, logp: Tensor, states: States, head: OutputHead, temperature: float
    ) -> Tuple[Tensor, Tensor]:
        """See ``Teacher.compare``."""
        divergence, kl = torch.zeros_like(logp), torch.zeros_like(logp)
        rows = torch.tensor([i for i, context in enumerate(batch.context) if context is not None], dtype=torch.long)
        if len(rows) == 0:
            return divergence, kl
        part, model = batch.take(rows), self._model if self._copy is None else self._copy
        steps = part.action.shape[1]
        own, known = PromptBatch.of(part.context, logp.device), states._replace(state=states.state[rows, :steps])
        with torch.no_grad(), model.without_adapters() if self._kind == 'start' else nullcontext():
            read = model.completion_states(own, part.action, part.length)
        found = divergence_of(self._cfg, part, logp[rows, :steps], known, head, read, model.output_head(), temperature)
        divergence[rows, :steps], kl[rows, :steps] = found
        return divergence, kl

    def state_dict(self) -> Dict[str, Any]:
        return {} if self._copy is None else {STATE: self._copy.state_dict()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if not self._copies or STATE not in state:  # saved before the first update
            return
        self._copy = copy.deepcopy(self._model).requires_grad_(False)
        self._copy.load_state_dict(state[STATE])
