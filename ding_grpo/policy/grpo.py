"""
Group Relative Policy Optimization as a DI-engine policy. Departures from https://arxiv.org/abs/2402.03300:

1. ``logp_old`` is the log-probability that the sampler reports, under temperature, top-k and top-p. In bfloat16 and
   float16 the learner rounds differently from the sampler (``sampler_gap_max``), and a narrow clipping range would clip
   this difference. In these types, groups that the current weights sampled use the learner's first pass instead. The
   first mini-batch needs this pass anyway; the others need one more forward pass before the first step. Rounding
   depends on the rows that are read together. Further epochs therefore reuse the mini-batches of the first epoch, in
   another order.
2. The KL term is off by default (``beta=0``). There is no reference model then.
3. The reference model is the initial policy. The paper renews it from time to time; ``ref_sync_freq`` does the same.
4. Two options are not in the paper: ``adv_method='no_std'`` does not divide advantages by the group's standard
   deviation, and ``entropy_weight`` adds an entropy bonus.
5. ``advantage='return_to_go'`` compares each step by its later rewards, like the paper's process supervision (section
   4.1.3), which compares their sums. A discount and the extension of truncated episodes are added.
"""
import copy
import time
from dataclasses import replace
from functools import singledispatch
from typing import Any, Dict, List, Optional, Tuple

import click
import torch
from ding.policy import Policy
from ding.policy.command_mode_policy_instance import DummyCommandModePolicy
from ding.utils import POLICY_REGISTRY
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from ding_common import ConfigError, describe, parallel
from ding_common.memory import MemoryMeter
from ding_grpo.model import CausalLM
from ding_grpo.model.sharding import Sharding
from ding_grpo.rl_utils import explained_variance, row_mean

from .adaptive import Coefficients
from .advantage import Advantage, corrected, of_high_entropy, with_kl_in_reward
from .batch import Batch
from .demonstrations import make_demonstrations
from .diagnose import check_weights
from .config_keys import model_type
from .grpo_check import check_for_turns, check_policy_config
from .grpo_config import DEFAULTS
from .half_weights import bfloat16_notice, check_trained
from .loss_options import adv_method, loss_options
from .memory import memory_advice
from .metrics import DEMONSTRATION_METRICS, TEACHER_METRICS, batch_metrics, logged_metrics
from .reference import Reference, make_reference
from .sample import fold_group
from .schedule import Schedule
from .shadow import Shadow
from .step_actor import StepActor
from .teacher import make_teacher
from .token_actor import TokenActor
from .token_record import TokenRecorder
from .update import Extras, Updater
from .value_learning import ValueLearning
from .watch import Watch

make_actor = singledispatch(StepActor.of)  # by the model's class
make_actor.register(CausalLM, TokenActor.of)


@POLICY_REGISTRY.register('grpo')
class GRPOPolicy(Policy):
    """
    Overview:
        GRPO, https://arxiv.org/abs/2402.03300. A training sample is a whole group of ``group_size`` trajectories
        from one start. ``n_sample`` and ``batch_size`` count groups.
    """

    config = DEFAULTS
    _learns_from_groups = True  # read by the workers through ``get_attribute``

    def __init__(
            self,
            cfg: Dict,
            model: Optional[torch.nn.Module] = None,
            enable_field: Optional[List[str]] = None,
    ) -> None:
        check_policy_config(cfg, self.default_config())
        super().__init__(cfg, model, enable_field)
        # The model is on the GPU of LOCAL_RANK. DI-engine uses RANK, which differs from it on several machines.
        self._device = str(next(self._model.parameters()).device)
        method = adv_method(cfg.learn)
        self._needs_score_norm = method == 'optimal_token_baseline'
        self._needs_greedy = method == 'remax'  # read by the collector through ``get_attribute``
        self._advantage = Advantage(
            method,
            cfg.learn.advantage,
            cfg.collect.discount_factor,
            cfg.learn.extend_truncated,
            anchor_weight=cfg.learn.anchor_weight
        )

    def default_model(self) -> Tuple[str, List[str]]:
        return model_type(self._cfg.model), ['ding_grpo.model', 'ding.model']

    def _create_model(self, cfg: Dict, model: Optional[torch.nn.Module] = None) -> torch.nn.Module:
        if isinstance(model, PreTrainedModel):
            model = CausalLM.from_model(model)
        try:
            model = super()._create_model(cfg, model)
        except ConfigError:
            raise
        except Exception as error:  # a model may raise any exception for its arguments
            written = {key: value for key, value in cfg.model.items() if key not in ('type', 'import_names')}
            raise ConfigError(
                f'policy.model = {written!r}: {model_type(cfg.model)!r} cannot be built with them ({describe(error)})'
            ) from error
        check_weights(model, 'policy.model')
        self._actor = make_actor(model, cfg, torch.initial_seed())  # the seed that DI-engine set
        self._actor.check_learning(cfg)
        if cfg.shard and cfg.multi_gpu:
            self._shard(model)
        return model

    def _shard(self, model: CausalLM) -> None:
        """Divide the model among the processes before it is moved to a GPU; sampling uses a plain copy of it."""
        self._init_multi_gpu_setting(model)
        if parallel.world_size() > 1:
            self._sharding = Sharding(model, self._cfg.cuda)
            self._actor = make_actor(self._sharding.copy, self._cfg, torch.initial_seed())

    def _init_multi_gpu_setting(self, model: torch.nn.Module, bp_update_sync: bool = True) -> None:
        if self._sharding is not None:
            return
        if parallel.world_size() != parallel.launched():
            raise ConfigError(
                f'policy.multi_gpu = True: torchrun has started {parallel.launched()} processes, which are not '
                'connected. Start them with torchrun -m ding_grpo.'
            )
        parallel.broadcast(list(model.state_dict().values()))

    def _bind(self, spec: Any, spaces: Optional[Tuple] = None) -> None:
        """
        Overview:
            Receive facts about the environment, from the workers through ``get_attribute('bind')``.
        Arguments:
            - spec (:obj:`Any`): The environment's ``token_spec``, None if it has none.
            - spaces (:obj:`Optional[Tuple]`): The spaces of its observations and its actions.
        Raises:
            - ConfigError: If environment and model do not fit.
        """
        self._actor.bind(spec, spaces)
        if self._sharding is not None:
            self._sharding.check_reading()
            self._actor.bind_reference(self._model)
        if spec is not None:
            check_for_turns(self._cfg, spec.max_turns)
            self._advantage = self._advantage._replace(by_turn=spec.max_turns > 1)
        if self._cfg.learn.reward_aggregation == 'normalize_then_sum':
            self._advantage = self._advantage._replace(part_weights=spec.reward_weights)
        if self._reference is not None and self._reference.copy is not None:
            self._actor.bind_reference(self._reference.copy)
        if self._critic is not None and self._critic.model is not None:
            self._actor.bind_reference(self._critic.model)
        if self._extras.demonstrations is not None:
            self._extras.demonstrations.bind(spec)
        if self._extras.teacher is not None:
            self._extras.teacher.bind(spec.tokenizer, spec.vocab_size, spec.max_prompt_length + spec.max_tokens)

    def _get_mesh(self) -> Optional[DeviceMesh]:
        return None if self._sharding is None else self._sharding.mesh

    def _get_token_spec(self) -> Any:
        return self._actor.spec

    def _get_optimizer_steps(self) -> int:
        return 0 if self._updater is None else self._updater.optimizer_steps

    def _get_watch(self) -> Watch:
        return self._watch

    def _get_model(self) -> torch.nn.Module:
        """The model with whole weights. While the policy learns with ``shard``, it is empty."""
        return self._model if self._sharding is None else self._sharding.copy

    # ------------------------------------------------------------------ learn
    _sharding: Optional[Sharding] = None
    _updater: Optional[Updater] = None
    _critic: Optional[torch.nn.Module] = None
    _extras = Extras()
    _reference: Optional[Reference] = None
    _tokens: List[Dict[str, Any]] = []  # of the last update, for the workers; empty unless ``tokens_freq`` is due

    def _init_learn(self) -> None:
        cfg = self._cfg.learn
        self._learn_model = self._model
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        check_trained(trained)
        notice = bfloat16_notice(
            {n: p
             for n, p in self._get_model().named_parameters() if n in trained}, cfg.learning_rate
        )
        if notice is not None and parallel.rank() == 0:
            click.echo(notice)
        duplicate = copy.deepcopy if self._sharding is None else self._sharding.duplicate
        self._reference = make_reference(cfg, self._actor, self._model, duplicate)
        options, of_critic, values = loss_options(cfg)[0], [], None
        if cfg.advantage == 'gae':
            self._critic = self._actor.make_critic(cfg)
            of_critic = [p for p in self._critic.parameters() if p.requires_grad]
            values = ValueLearning(cfg, options, self._actor, self._model, self._critic)
        self._optimizer = torch.optim.AdamW(
            [*trained.values(), *of_critic],
            lr=cfg.learning_rate,
            weight_decay=cfg.weight_decay,
            fused=self._actor.fused
        )
        self._schedule = Schedule(cfg.lr_scheduler, cfg.learning_rate)
        self._coefficients = Coefficients(cfg)
        reduction = options.get('reduction', 'sequence')
        size = self._get_batch_size()
        shadow, left_out = Shadow.of(self._cfg, self._check_run)
        for line in left_out if parallel.rank() == 0 else ():
            click.echo(line)
        self._extras = Extras(
            values, make_teacher(self._cfg, reduction, self._device), make_demonstrations(cfg, reduction), shadow
        )
        self._updater = Updater(cfg, size, options, self._actor, self._model, self._optimizer, self._extras)
        self._updates = 0
        self._watch = Watch(self._cfg, self._actor, self._model, self._updater)

    def _check_run(self, cfg: Dict) -> None:
        check_policy_config(cfg, self.default_config())
        self._actor.check_learning(cfg)

    def _forward_learn(self, data: List[Dict[str, Any]]) -> Dict[str, float]:
        """
        Overview:
            Perform one update, see ``update.py``.
        Arguments:
            - data (:obj:`List[Dict]`): Groups from ``get_train_sample``.
        Returns:
            - metrics (:obj:`Dict[str, float]`): See docs/metrics.md.
        """
        start = time.perf_counter()
        cfg = self._cfg.learn
        if self._sharding is not None:
            self._sharding.release()
        batch = Batch.of(data)
        metrics = batch_metrics(batch, self._actor.length_name)
        metrics['staleness_max'] = float(max(g.get('staleness', 0) for g in data))
        metrics['cur_lr'] = self._schedule.rate(self._updates)
        for section in self._optimizer.param_groups:
            section['lr'] = metrics['cur_lr']
        memory = MemoryMeter(self._device)
        with memory.part('updating'), memory_advice('learning', self._actor.memory_advice(self._cfg)):
            learned = self._to_learn(batch)
            if cfg.sampler_correction is not None or cfg.off_policy_mask is not None:
                learned, of_correction = corrected(learned, self._updater.read(learned), cfg)
                metrics.update(of_correction)
            if self._critic is not None:
                metrics['explained_variance'] = explained_variance(learned.value, learned.return_, learned.weight)
            self._updater.beta = 0.0 if cfg.kl_in_reward else self._coefficients.beta
            self._updater.entropy_weight = self._coefficients.entropy_weight
            recorder = self._recorder(batch)
            look = self._watch.look(learned)
            metrics.update(self._updater.run(learned, self._updates), **self._coefficients.metrics())
            used = torch.tensor([g.get('use', 1) > 1 for g in data])  # by a replay buffer
            frozen = None if self._reference is None else self._reference.frozen
            self._watch.add(batch.without(used[batch.group]), learned, metrics, look, frozen)
            self._tokens = [] if recorder is None else recorder.records(learned)
        self._coefficients.follow(metrics, len(learned))
        self._updates += 1
        if self._reference is not None and cfg.ref_sync_freq is not None and self._updates % cfg.ref_sync_freq == 0:
            self._watch.reference_renewed()
            self._reference.renew(cfg.ref_sync_mixup)
        if self._sharding is not None:
            self._sharding.gather()
        for name in ('replaced_groups', 'seconds_sampling', 'seconds_scoring'):
            metrics[name] = float(sum(g[name] for g in data))
        if self._cfg.collect.extra_rows > 0:  # absent in groups of older versions
            metrics['dropped_tokens'] = float(sum(g.get('dropped_tokens', 0) for g in data))
        metrics['seconds_updating'] = time.perf_counter() - start
        for name in ('memory_mib_sampling', 'memory_mib_scoring'):
            if all(name in g for g in data):  # absent in groups of older versions
                metrics[name] = max(g[name] for g in data)
        metrics['memory_mib_updating'] = memory.most['updating']
        seconds = sum(metrics[f'seconds_{part}'] for part in ('sampling', 'scoring', 'updating'))
        metrics[self._actor.rate_name] = batch.weight.sum().item() / seconds
        return metrics

    def _recorder(self, batch: Batch) -> Optional[TokenRecorder]:
        """Records what this update does to each token, if ``tokens_freq`` asks for it."""
        every, spec = self._cfg.learn.tokens_freq, self._actor.spec
        if every is None or self._updates % every != 0:
            return None
        return TokenRecorder(batch, self._updater, None if spec is None else spec.tokenizer)

    def _to_learn(self, batch: Batch) -> Batch:
        """The rows of a batch to learn from, with their advantages and, for a KL term, ``logp_ref``."""
        cfg = self._cfg.learn
        if cfg.kl_in_reward:
            batch = replace(batch, logp_ref=self._reference.read(self._updater, batch))
            batch = with_kl_in_reward(batch, self._coefficients.beta, cfg.kl_type)
        if self._critic is not None:
            batch = self._updater.with_values(batch, self._cfg.collect.discount_factor)
        if self._needs_score_norm:
            batch = replace(batch, score_norm=self._updater.score_norm(batch))
        adv = self._advantage.of(batch)
        shadow_adv = None if self._extras.shadow is None else self._extras.shadow.advantages(
            self._advantage, batch, adv
        )
        learned = replace(batch, adv=adv, shadow_adv=shadow_adv, score_norm=None, final_obs=None)
        if cfg.mask_truncated:
            learned.weight = batch.weight * ~batch.truncated.unsqueeze(1)
            learned.length = batch.length * ~batch.truncated
        dropped = batch.failed | batch.filtered
        learned = learned.without(dropped | batch.equal if cfg.drop_equal_groups else dropped)
        if cfg.top_entropy is not None:
            learned = of_high_entropy(learned, self._updater.entropy(learned), cfg.top_entropy)
        if cfg.beta > 0 and not cfg.kl_in_reward:
            learned.logp_ref = self._reference.read(self._updater, learned)
        return learned

    def _advantages(self, samples: List[Dict[str, Any]]) -> List[Optional[torch.Tensor]]:
        """The advantages (G, ) of each group's rows, or their means over steps, for the collector's table. None with a
        critic, ``optimal_token_baseline`` or ``kl_in_reward``, which need the model and are computed in the update.
        Called through ``get_attribute('advantages')``.
        """
        if self._critic is not None or self._needs_score_norm or self._cfg.learn.kl_in_reward:
            return [None for _ in samples]
        batch = Batch.of(samples)
        adv = self._advantage.of(batch)
        if adv.dim() == 2:
            adv = row_mean(adv, batch.weight)
        return list(adv.split([len(s['action']) for s in samples]))

    def _monitor_vars_learn(self) -> List[str]:
        actor = self._actor
        names = logged_metrics(actor.length_name, actor.rate_name, self._cfg.learn.beta > 0, self._critic is not None)
        if self._extras.teacher is not None:
            names += TEACHER_METRICS
        if self._extras.demonstrations is not None:
            names += DEMONSTRATION_METRICS
        return names + self._coefficients.names

    def _state_dict_learn(self) -> Dict[str, Any]:
        check_weights(self._get_model(), f'after update {self._updates}')  # a run cannot resume from NaN or Inf
        state = dict(
            model=self._model.state_dict(),
            optimizer=self._optimizer.state_dict(),
            shuffle=self._updater.shuffle.get_state(),
            updates=self._updates,
            bad_updates=self._updater.bad_updates.in_a_row,
            optimizer_steps=self._updater.optimizer_steps,
            watch=self._watch.state_dict(),
            **self._actor.state_dict(),
            **self._coefficients.state_dict(),
        )
        if self._critic is not None:
            state['critic'] = self._critic.state_dict()
        if self._cfg.learn.ref_sync_freq is not None:  # otherwise the config determines the reference
            state['reference'] = self._reference.copy.state_dict()
        return state

    def _load_state_dict_learn(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict)
        if ('critic' in state_dict) != (self._critic is not None):
            raise ConfigError(
                f"policy.learn.advantage = {self._cfg.learn.advantage!r}: the checkpoint contains "
                f"{'a' if self._critic is None else 'no'} critic, because its run used another advantage."
            )
        if self._critic is not None:
            self._critic.load_state_dict(state_dict['critic'])
        self._optimizer.load_state_dict(state_dict['optimizer'])
        self._updater.shuffle.set_state(state_dict['shuffle'])
        self._updates, self._updater.bad_updates.in_a_row = state_dict['updates'], state_dict['bad_updates']
        # absent in checkpoints of older versions, and in their groups
        self._updater.optimizer_steps = state_dict.get('optimizer_steps', 0)
        self._watch.load_state_dict(state_dict.get('watch', {}))
        self._actor.load_state_dict(state_dict)
        self._coefficients.load_state_dict(state_dict)
        if self._cfg.learn.ref_sync_freq is not None:
            if 'reference' not in state_dict:
                raise ConfigError(
                    f'policy.learn.ref_sync_freq = {self._cfg.learn.ref_sync_freq}: the checkpoint contains no '
                    'reference, because its run did not set this key. Remove it to load the checkpoint.'
                )
            self._reference.copy.load_state_dict(state_dict['reference'])

    # ---------------------------------------------------------------- collect
    def _init_collect(self) -> None:
        self._collect_model = self._get_model()
        self._unroll_len = self._cfg.collect.unroll_len
        self._priority = self._cfg.priority

    def _forward_collect(
            self,
            data: Dict[int, Any],
            row_keys: Optional[Dict[int, Tuple]],
            forced: Dict[int, Tuple] = {}
    ) -> Dict[int, Any]:
        """
        Overview:
            Sample an action for each environment, all in one batch. An action of a language model is a whole \
            completion.
        Arguments:
            - data (:obj:`Dict[int, Any]`): Observations by environment.
            - row_keys (:obj:`Optional[Dict[int, Tuple]]`): (collect, group, row) by environment, from the group \
                collector; None for the most probable token or action.
            - forced (:obj:`Dict[int, Tuple]`): See ``Actor.sample``.
        Returns:
            - output (:obj:`Dict[int, Dict]`): ``action`` and its ``logp`` by environment; with ``extra_rows`` also \
                ``dropped``, whether the row is one of the longest.
        """
        with memory_advice('sampling', f'Sample fewer rows at a time: lower env.collector_env_num, now {len(data)}.'):
            if row_keys is None:
                return self._actor.greedy(data)
            enough = self._cfg.group_size if self._cfg.collect.extra_rows > 0 else None
            return self._actor.sample(data, row_keys, forced, enough)

    def _process_transition(self, obs: Any, policy_output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        """
        Overview:
            Pack one step of one environment.
        """
        return self._actor.transition(obs, policy_output, timestep)

    def _get_train_sample(self, transitions: List[List[Dict[str, Any]]]) -> List[Dict[str, Any]]:
        """
        Overview:
            Fold the episodes of a group into one sample.
        Arguments:
            - transitions (:obj:`List[List[Dict]]`): The transitions of each episode of the group.
        Returns:
            - samples (:obj:`List[Dict]`): One sample, see ``fold_group``, with two more keys: ``equal``, see \
                ``Advantage.equal``, and ``sampled_after``, the number of optimizer steps before sampling.
        """
        sample = fold_group(transitions, self._cfg.collect.shared_start)
        equal = self._advantage.equal(Batch.of([sample]))
        return [dict(sample, equal=equal, sampled_after=self._get_optimizer_steps())]

    def _reset_collect(self, data_id: Optional[List[int]] = None) -> None:
        self._actor.forget(data_id)

    # ------------------------------------------------------------------- eval
    def _init_eval(self) -> None:
        self._eval_model = self._get_model()

    def _forward_eval(self, data: Dict[int, Any], row_keys: Optional[Dict[int, Tuple]] = None) -> Dict[int, Any]:
        """
        Overview:
            Choose the most probable token or action; with ``row_keys``, sample as in ``_forward_collect``.
        """
        return self._actor.greedy(data) if row_keys is None else self._actor.sample(data, row_keys)

    def _load_state_dict_eval(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict)

    def _load_weights(self, state_dict: Dict[str, Any]) -> None:
        try:
            self._model.load_state_dict(state_dict['model'])
        except (KeyError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f'policy.model = {dict(self._cfg.model)!r:.300}: the checkpoint is of another model ({describe(error)})'
            ) from error
        if self._sharding is not None:
            self._sharding.gather()
        check_weights(self._get_model(), 'the checkpoint')

    def _reset_eval(self, data_id: Optional[List[int]] = None) -> None:
        self._actor.forget(data_id)


@POLICY_REGISTRY.register('grpo_command')
class GRPOCommandModePolicy(GRPOPolicy, DummyCommandModePolicy):
    """
    Overview:
        ``grpo`` under the name that DI-engine's serial pipelines use.
    """
