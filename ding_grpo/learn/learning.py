"""From groups to new weights: the learn mode of ``GRPOPolicy``."""
import copy
import math
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

import click
import torch
from torch import nn

from ding_common import ConfigError, parallel
from ding_common.processes.memory import MemoryMeter, memory_advice
from ding_grpo.act.actor import Actor
from ding_grpo.config.loss_options import loss_config
from ding_grpo.config.optimizer import hidden_matrices, make_optimizer, stepping
from ding_grpo.config.schedule import Schedule
from ding_grpo.data.batch import Batch
from ding_grpo.model.sharding import Sharding

from .adaptive import Coefficients
from .advantage import Advantage, corrected, of_high_entropy, with_kl_in_reward
from .extra_loss import EXTRA_LOSSES, ExtraLoss, Setting, make_asked
from .half_weights import bfloat16_notice, check_trained
from .metrics import batch_metrics, group_metrics, logged_metrics
from .observer import Observers, View
from .reference import make_reference
from .update import Updater


class Learning:
    """What an update learns from, and all that is kept between updates: the optimizer, the schedule, the reference, the
    critic and the coefficients. ``Updater`` takes the optimizer steps."""

    def __init__(
            self, cfg: Dict, actor: Actor, model: nn.Module, advantage: Advantage, sharding: Optional[Sharding],
            check_run: Callable[[Dict], None]
    ) -> None:
        """``cfg`` is the section ``policy``. ``check_run`` raises ``ConfigError`` if a policy cannot learn with one."""
        self._cfg, self._actor, self.model, self._advantage, self._sharding = cfg, actor, model, advantage, sharding
        self._device = next(model.parameters()).device
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        check_trained(trained)
        learn, loss = cfg.learn, loss_config(cfg.learn)
        duplicate = copy.deepcopy if sharding is None else sharding.duplicate
        self.reference = make_reference(learn, actor, model, duplicate)
        self.terms: Dict[str, ExtraLoss] = make_asked(EXTRA_LOSSES, Setting(cfg, loss, actor, model))
        own = [p for term in self.terms.values() for p in term.parameters()]
        optimizer = make_optimizer(learn, [*trained.values(), *own], hidden_matrices(model))
        self.schedule = Schedule(learn.lr_scheduler, learn.learning_rate)
        self._coefficients = Coefficients(learn)
        self.updater = Updater(learn, learn.batch_groups, loss, actor, model, optimizer, list(self.terms.values()))
        self.optimizer = optimizer
        self.updates = 0
        self.observers = Observers.of(View(cfg, actor, model, self.updater, self.reference, check_run))
        self.updater.observers = self.observers
        sampled = dict((model if sharding is None else sharding.copy).named_parameters())
        notices = [
            bfloat16_notice({name: sampled[name]
                             for name in trained}, learn.learning_rate),
            self.schedule.notice(cfg.run.num_updates),
            *(line for observer in self.observers.values() for line in observer.notices)
        ]
        for line in filter(None, notices) if parallel.rank() == 0 else []:
            click.echo(line)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of the config, unless it has been replaced by another one for the same weights."""
        return self.updater.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        weights = [p for section in optimizer.param_groups for p in section['params']]
        # torch's fused step does not count in Tensor._version, by which KeptCache tells that weights have changed
        optimizer.register_step_post_hook(lambda *_: torch.autograd.graph.increment_version(weights))
        self.updater.optimizer = optimizer

    def bind(self, spec: Any, advantage: Advantage) -> None:
        """Receive the environment's ``token_spec``, and how rows are compared in it."""
        self._advantage = advantage
        if self.reference is not None and self.reference.copy is not None:
            self._actor.bind_reference(self.reference.copy)
        for term in self.terms.values():
            term.bind(spec)

    def update(self, data: List[Dict[str, Any]]) -> Dict[str, float]:
        """Learn from groups of ``get_train_sample``, completed by the collector. Returns metrics."""
        start = time.perf_counter()
        if self._sharding is not None:
            self._sharding.release()
        batch, memory = Batch.of(data), MemoryMeter(self._device)
        used = torch.tensor([group.get('use', 1) > 1 for group in data])  # by an earlier update, with a replay buffer
        updater = self.updater
        before = updater.optimizer_steps, updater.shuffle.get_state(), updater.bad_updates.in_a_row
        try:
            with memory.part('updating'), memory_advice('learning', self._actor.memory_advice(self._cfg)):
                metrics = self._learn(batch, batch.without(used[batch.group]))
        except Exception:
            if updater.optimizer_steps == before[0]:  # the update can be saved as if it had not begun
                updater.shuffle.set_state(before[1])
                updater.bad_updates.in_a_row = before[2]
            raise
        self.updates += 1
        every = self._cfg.learn.kl.ref_sync_freq
        if self.reference is not None and every is not None and self.updates % every == 0:
            self.observers.reference_renewed()
            self.reference.renew(self._cfg.learn.kl.ref_sync_mixup)
        if self._sharding is not None:
            self._sharding.gather()
        metrics.update(group_metrics(data, with_dropped=self._cfg.collect.extra_rows > 0))
        metrics['memory_mib_updating'] = memory.most['updating']
        metrics['seconds_updating'] = time.perf_counter() - start
        seconds = sum(metrics[f'seconds_{part}'] for part in ('sampling', 'scoring', 'updating'))
        metrics[self._actor.rate_name] = batch.weight.sum().item() / seconds
        return metrics

    def _learn(self, batch: Batch, new: Batch) -> Dict[str, float]:
        """Update the weights by a batch; ``new`` are its rows that no earlier update has used."""
        cfg, coefficients = self._cfg.learn, self._coefficients
        metrics = batch_metrics(batch, self._actor.length_name)
        metrics['cur_lr'] = self.schedule.rate(self.updates)
        for section in self.optimizer.param_groups:
            if isinstance(section['lr'], torch.Tensor):  # an optimizer that is compiled
                section['lr'].fill_(metrics['cur_lr'])
            else:
                section['lr'] = metrics['cur_lr']
        learned = self.to_learn(batch)
        if any(cfg.off_policy[key] is not None for key in ('correction', 'mask', 'row_mask')):
            learned, of_correction = corrected(learned, self.updater.read(learned), cfg)
            metrics.update(of_correction)
        for term in self.terms.values():
            metrics.update(term.of_batch(learned))
        self.updater.beta = 0.0 if cfg.kl.in_reward else coefficients.beta
        self.updater.entropy_weight = coefficients.entropy_weight
        seen = self.observers.before(self.updates, batch, learned)
        metrics.update(self.updater.run(learned, self.updates), **seen, **coefficients.metrics())
        self.observers.after(new, learned, metrics)
        coefficients.follow(metrics, len(learned))
        return metrics

    def to_learn(self, batch: Batch) -> Batch:
        """The rows of whole groups to learn from, with their advantages and, for a KL term, ``logp_ref``."""
        cfg = self._cfg.learn
        if cfg.kl.in_reward:
            batch = replace(batch, logp_ref=self.reference.read(self.updater, batch))
            batch = with_kl_in_reward(batch, self._coefficients.beta, cfg.kl.type)
        for term in self.terms.values():
            batch = term.prepare(batch, self.updater.read_rows)
        if self._advantage.method == 'optimal_token_baseline':
            batch = replace(batch, score_norm=self.updater.score_norm(batch))
        compared = replace(batch, adv=self._advantage.of(batch))
        other_adv = self.observers.compared(compared, self._advantage) or None
        learned = replace(compared, other_adv=other_adv, score_norm=None, final_obs=None)
        if cfg.mask_truncated:
            learned.weight = batch.weight * ~batch.truncated.unsqueeze(1)
            learned.length = batch.length * ~batch.truncated
        dropped = batch.failed | batch.filtered
        learned = learned.without(dropped | batch.equal if cfg.drop_equal_groups else dropped)
        if cfg.entropy.top_share is not None:
            _, entropy = self.updater.read_with_entropy(learned)
            learned = of_high_entropy(learned, entropy, cfg.entropy.top_share)
        if cfg.kl.beta > 0 and not cfg.kl.in_reward:
            learned.logp_ref = self.reference.read(self.updater, learned)
        return learned

    @property
    def metric_names(self) -> List[str]:
        actor = self._actor
        names = logged_metrics(actor.length_name, actor.rate_name, self._cfg.learn.kl.beta > 0)
        names += [name for term in self.terms.values() for name in term.logged]
        return names + self._coefficients.names

    def state_dict(self) -> Dict[str, Any]:
        """All that a resumed run needs, with the model's weights."""
        state = dict(
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            optimizer_type=type(stepping(self.optimizer)).__name__,
            shuffle=self.updater.shuffle.get_state(),
            updates=self.updates,
            bad_updates=self.updater.bad_updates.in_a_row,
            optimizer_steps=self.updater.optimizer_steps,
            **self.observers.state_dict(),
            **self._actor.state_dict(),
            **self._coefficients.state_dict(),
        )
        for term in self.terms.values():
            state.update(term.state_dict())
        if self._cfg.learn.kl.ref_sync_freq is not None:  # otherwise the config determines the reference
            state['reference'] = self.reference.copy.state_dict()
        return state

    def _tell_other_rate(self, last: float) -> None:
        """A line if the checkpoint's last update had another learning rate than this run would have had in it."""
        own = self.schedule.rate(self.updates - 1) if self.updates > 0 else last
        if parallel.rank() == 0 and not math.isclose(own, last, rel_tol=1e-6):
            click.echo(
                f'policy.learn.learning_rate = {self._cfg.learn.learning_rate:g}: the last update of the checkpoint had'
                f' the rate {last:.3g}, and would have {own:.3g} with this config. The run continues with '
                f'{self.schedule.rate(self.updates):.3g}'
            )

    @staticmethod
    def is_own(state: Dict[str, Any]) -> bool:
        """Whether a checkpoint is of grpo, and not of another policy, such as PPO."""
        return 'shuffle' in state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore all of ``state_dict`` except the model's weights. The weights of another policy's checkpoint, such as
        one of PPO, are those that a new run starts with."""
        cfg = self._cfg.learn
        if not self.is_own(state):
            if self.reference is not None and self.reference.copy is not None:
                self.reference.renew(1.0)
            return
        if ('critic' in state) != ('critic' in self.terms):
            raise ConfigError(
                f"policy.learn.advantage = {cfg.advantage!r}: the checkpoint contains "
                f"{'no' if 'critic' in self.terms else 'a'} critic, because its run used another advantage."
            )
        if cfg.kl.ref_sync_freq is not None and 'reference' not in state:
            raise ConfigError(
                f'policy.learn.kl.ref_sync_freq = {cfg.kl.ref_sync_freq}: the checkpoint contains no reference, '
                'because its run did not set this key. Remove it to load the checkpoint.'
            )
        for term in self.terms.values():
            term.load_state_dict(state)
        if cfg.kl.ref_sync_freq is not None:
            self.reference.copy.load_state_dict(state['reference'])
        own = type(stepping(self.optimizer)).__name__
        if state.get('optimizer_type', own) != own:  # absent in checkpoints of older versions
            raise ConfigError(
                f"policy.learn.optimizer.type = {cfg.optimizer['type']!r}: the checkpoint is of a run with another "
                f"optimizer ({state['optimizer_type']})."
            )
        weights = [weight for group in self.optimizer.param_groups for weight in group['params']]
        for number, kept in state['optimizer']['state'].items():
            for name, value in kept.items() if isinstance(stepping(self.optimizer), torch.optim.AdamW) else ():
                # torch takes any shape, and converts integers
                shape = tuple(weights[number].shape)
                if not value.is_floating_point() or tuple(value.shape) not in (shape, ()):
                    raise ConfigError(
                        f'the checkpoint: {name} of weight {number} is {value.dtype} {tuple(value.shape)}, must be '
                        f'floating-point numbers with shape {shape}.'
                    )
        skipped = ('params', 'lr')  # the rate of an update is that of the schedule
        settings = [{k: v for k, v in group.items() if k not in skipped} for group in self.optimizer.param_groups]
        groups = state['optimizer']['param_groups']
        if len(groups) == len(settings):  # settings of this config, also where the checkpoint's were others
            groups = [{**group, **setting} for group, setting in zip(groups, settings)]
        self.optimizer.load_state_dict(dict(state['optimizer'], param_groups=groups))
        self.updater.shuffle.set_state(state['shuffle'])
        self.updates, self.updater.bad_updates.in_a_row = state['updates'], state['bad_updates']
        self._tell_other_rate(state['optimizer']['param_groups'][0]['lr'])
        # absent in checkpoints of older versions, and in their groups
        self.updater.optimizer_steps = state.get('optimizer_steps', 0)
        self.observers.load_state_dict(state)
        self._coefficients.load_state_dict(state)
