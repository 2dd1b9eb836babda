"""
Group Relative Policy Optimization as a DI-engine policy. Where it departs from https://arxiv.org/abs/2402.03300:

1. ``logp_old`` is what the sampler reports, under temperature, top-k and top-p. In bfloat16 and float16 the learner
   rounds otherwise than the sampler (``sampler_gap_max``), and a narrow clipping range would clip that. There groups
   that the present weights have sampled get the learner's own first pass in its place. The first mini-batch has it
   anyway; others cost one more forward pass, before the first step. Since rounding depends on the rows that are read
   together, further epochs then have the mini-batches of the first, in another order.
2. The KL term is off by default (``beta=0``), and then no reference model is kept.
3. The reference model is the policy as it starts; the paper renews it from time to time, here ``ref_sync_freq``.
4. Advantages may be left undivided by the group's standard deviation (``adv_method='no_std'``), and an entropy bonus
   may be added (``entropy_weight``); neither is in the paper.
5. With ``advantage='return_to_go'`` each step is compared by what follows it, as the paper's process supervision
   (section 4.1.3) compares the sums of later rewards; a discount and the extension of cut episodes are added.
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
from transformers import PreTrainedModel

from ding_common import ConfigError, describe, parallel
from ding_grpo.model import CausalLM
from ding_grpo.rl_utils import row_mean

from .advantage import Advantage
from .batch import Batch
from .diagnose import check_weights
from .grpo_config import check_policy_config, check_replay, loss_options, model_type
from .half_weights import bfloat16_notice, check_trained
from .memory import memory_advice
from .metrics import OUTCOMES, STEP_METRICS, batch_metrics
from .sample import fold_group
from .schedule import Schedule
from .step_actor import StepActor
from .token_actor import TokenActor
from .update import Updater

make_actor = singledispatch(StepActor.of)  # by the model's class
make_actor.register(CausalLM, TokenActor.of)


@POLICY_REGISTRY.register('grpo')
class GRPOPolicy(Policy):
    """
    Overview:
        GRPO, https://arxiv.org/abs/2402.03300. A training sample is a whole group of ``group_size`` trajectories
        from one start; ``n_sample`` and ``batch_size`` count groups.
    """

    config = dict(
        # (str) Registered name of the policy.
        type='grpo',
        # (bool) Whether to use a GPU; without one on the machine it is an error.
        cuda=False,
        # (bool) Whether the processes that ``torchrun`` has started, on GPUs or not, share the run (docs/scaling.md).
        # Groups, mini-batches and results are those of one process.
        multi_gpu=False,
        # (bool) Whether the data comes from the policy being trained; DI-engine's collectors ask.
        on_policy=True,
        # (bool) Priorities of a replay buffer are not used; DI-engine's pipelines ask.
        priority=False,
        # (int) Trajectories from one start, at least 2. Raise it when most groups have equal rewards.
        group_size=8,
        # (dict) Keys of the registered model; for ``causal_lm`` either ``pretrained`` or ``config``.
        model=dict(),
        learn=dict(
            # (int) Passes over the groups of one collect. More than 1 reuses samples within the clipping range.
            epoch_per_collect=1,
            # (Optional[float]) End the epochs of an update when the policy is further, in KL (k3), from the one that
            # sampled; 0.02 or so lets many epochs do no harm. None: never. Not with a replay buffer, whose samples are
            # of older policies anyway.
            target_kl=None,
            # (Optional[float]) The same when the largest importance ratio of a mini-batch is above this, which is above
            # 1: a few tokens may run away while the KL, a mean, stays small. About 10; see ``ratio_max``.
            max_ratio=None,
            # (int) A step of the optimizer whose loss or gradient is not finite is skipped and told of; after so many
            # updates in a row with such a step the run ends and says where the first such number stands.
            max_bad_updates=5,
            # (int) Groups in a mini-batch. Equal to ``n_sample`` for one step an epoch.
            batch_size=8,
            # (Optional[int]) Steps in a mini-batch, drawn from all groups of the update, in place of ``batch_size``
            # groups. For episodes of many steps, where it makes more of each; not for language models.
            batch_steps=None,
            # (Optional[int]) Most tokens that learning reads at a time, prompts and completions. A mini-batch of more
            # is divided and its gradient accumulated, which changes memory alone. Lower it when that is short.
            micro_batch_tokens=None,
            # (int) Updates between two collects; read by ``ding -m serial`` only.
            update_per_collect=1,
            # (float) Learning rate of AdamW. About 1e-6 for a pretrained model, 1e-3 for a tiny random one.
            learning_rate=1e-5,
            # (float) Weight decay of AdamW.
            weight_decay=0.0,
            lr_scheduler=dict(
                # (str) A schedule of ``transformers.get_scheduler``, whose steps are updates, with or without a step of
                # the optimizer; a decay helps to stay solved.
                type='constant',
                # (int) Updates W in which the rate grows: to 1 / W in the first of them, to the whole in the last.
                num_warmup_steps=0,
                # (Optional[int]) Updates after which a decaying schedule has ended; 'constant' needs none.
                num_training_steps=None,
                # (dict) Further arguments of that schedule, such as min_lr_rate.
                specific=dict(),
            ),
            # (float) Largest norm of the gradient; lower it when the loss jumps.
            grad_clip_value=1.0,
            # (str) A combination of the choices below by its paper's name: grpo, bnpo, dr_grpo, dapo, cispo, sapo,
            # gspo, luspo (docs/losses.md). A choice that is None is the preset's.
            loss='grpo',
            # (Optional[float]) Clipping range of the probability ratio, in (0, 1]; None: the preset's, else 0.2.
            clip_ratio=None,
            # (Optional[float]) Clipping range above 1, if another; raise it when rare good tokens should grow faster.
            clip_ratio_high=None,
            # (Optional[float]) Bound of the ratio for negative advantages, above 1 + the clipping range.
            delta=None,
            # (Optional[str]) 'token', or 'sequence' for one ratio a row.
            ratio=None,
            # (Optional[str]) 'clip', 'cispo', 'sapo', or 'module:function' for one that you write (docs/losses.md).
            surrogate=None,
            # (Optional[str]) 'sequence', 'token', 'constant' or 'sum': what a token's loss is divided by.
            reduction=None,
            # (float) Coefficient of the KL to the reference, which is the start unless ``ref_sync_freq`` renews it. 0
            # keeps no reference; raise it to stay near.
            beta=0.0,
            # (str) Estimator of that KL: k1, k2 or k3.
            kl_type='k3',
            # (bool) Whether that KL is multiplied by the ratio; right when groups are used more than once.
            kl_ratio_correction=False,
            # (Optional[str]) How advantages are made, see ``group_advantage``; None: the preset's, else 'grpo',
            # which divides by the group's standard deviation. 'no_std' does not: better when a small part of the
            # reward, such as a format bonus, would be blown up to the size of the answer's.
            adv_method=None,
            # (str) What a group compares: 'outcome', the return of each trajectory, or 'return_to_go', the return from
            # each step on among all steps of the group, or 'return_to_go_by_step', among the same step of all its rows
            # (those that have ended too). The latter two for episodes of many steps.
            advantage='outcome',
            # (bool) Whether an episode that a time limit cut counts as if it went on for ever with its last reward, for
            # 'return_to_go' with a discount: else the steps before the cut look worse than they are.
            extend_truncated=False,
            # (str) How log-probabilities are computed: 'linear_log_prob' straight from hidden states, in the least
            # memory; from logits, for models whose output layer that does not fit: 'efficient_method', or the plain
            # 'naive_method' and 'less_efficient_method'.
            log_prob_fn='linear_log_prob',
            # (float) Coefficient of an entropy bonus; raise it when the entropy collapses before the task is solved.
            entropy_weight=0.0,
            # (bool) Whether to leave out groups of equal rewards; saves time, and changes the loss's mean.
            drop_equal_groups=False,
            # (bool) Whether completions that the length limit cut stay out of the loss (they still count in their
            # group's comparison). For tasks whose answers come at the end, where a cut says nothing of the way.
            mask_truncated=False,
            # (str) With several reward parts: 'sum_then_normalize' compares their weighted sum; 'normalize_then_sum'
            # compares each part by itself, sums the advantages and divides them by their deviation over the batch, so
            # that no part drowns another (GDPO, https://arxiv.org/abs/2601.05242); with ``adv_method='grpo'``.
            reward_aggregation='sum_then_normalize',
            # (Optional[int]) Updates between two renewals of the reference; None keeps the start. As the paper's
            # iterative form, or https://arxiv.org/abs/2404.09656 with a mixup below 1.
            ref_sync_freq=None,
            # (float) Share of the policy in the renewed reference, in (0, 1].
            ref_sync_mixup=1.0,
            # (bool) Whether the run goes on in its folder from its newest checkpoint, or the one that
            # ``learner.hook.load_ckpt_before_run`` names, exactly as if it had not stopped.
            resume_training=False,
            # (int) How many of the newest periodic checkpoints are kept; ckpt_best stays besides.
            keep_ckpt=3,
            learner=dict(
                # (bool) Whether to log the model's layers at the start.
                log_policy=False,
                hook=dict(
                    # (int) Updates between two tables in the learner's text log, each a mean over ten updates.
                    log_show_after_iter=10,
                    # (int) Updates between two checkpoints, from which ``resume_training`` goes on.
                    save_ckpt_after_iter=100,
                    # (bool) A checkpoint at the end; DI-engine saves it whatever stands here.
                    save_ckpt_after_run=True,
                    # (dict) What a user sees and keeps, see ``ding_grpo.worker.report``.
                    report=dict(name='report', type='grpo_report', position='before_run', priority=90, ext_args=dict()),
                ),
            ),
        ),
        collect=dict(
            # (int) Groups in one collect.
            n_sample=8,
            # (float) Logits are divided by it. 1 is the model's own distribution.
            temperature=1.0,
            # (Optional[int]) Sample from the likeliest tokens only; their ids are stored with each token.
            top_k=None,
            # (Optional[float]) Of these, from the fewest whose probabilities sum to it, in (0, 1]; needs ``top_k``.
            top_p=None,
            # (float) Discount of rewards; 1 for completions of a language model.
            discount_factor=1.0,
            # (bool) Whether the trajectories of a group have one start; False gives each its own, for environments
            # whose starts hardly differ.
            shared_start=True,
            # (int) A DI-engine collector's unit; a group is whole whatever its length.
            unroll_len=1,
            collector=dict(),
        ),
        eval=dict(
            evaluator=dict(
                # (int) Updates between two evaluations.
                eval_freq=10,
                # (int) Episodes of the sampled policy from each start, besides the greedy ones.
                samples_per_start=0,
                # (List[int]) For each k of it the probability that one of k samples is right (pass@k, unbiased), with a
                # confidence interval over the starts; needs ``samples_per_start`` of at least k.
                pass_at=[],
                # (float) Return from which a sample is right.
                right_from=1.0,
                # (float) Largest share of an evaluation's completions that may fail to be scored before the run stops.
                max_failed=0.1,
            ),
        ),
        other=dict(replay_buffer=dict()),
    )

    def __init__(
            self,
            cfg: Dict,
            model: Optional[torch.nn.Module] = None,
            enable_field: Optional[List[str]] = None,
    ) -> None:
        check_policy_config(cfg, self.default_config())
        super().__init__(cfg, model, enable_field)
        # The model is on the current GPU, that of LOCAL_RANK. DI-engine counts by RANK: with several machines another.
        self._device = str(next(self._model.parameters()).device)
        self._advantage = Advantage(
            loss_options(cfg.learn)[1], cfg.learn.advantage, cfg.collect.discount_factor, cfg.learn.extend_truncated
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
        except Exception as error:  # a model may raise anything over its arguments
            written = {key: value for key, value in cfg.model.items() if key not in ('type', 'import_names')}
            raise ConfigError(
                f'policy.model = {written!r}: {model_type(cfg.model)!r} cannot be made of it ({describe(error)})'
            ) from error
        check_weights(model, 'policy.model')
        self._actor = make_actor(model, cfg, torch.initial_seed())  # the seed that DI-engine set
        self._actor.check_learning(cfg)
        return model

    def _init_multi_gpu_setting(self, model: torch.nn.Module, bp_update_sync: bool) -> None:
        if parallel.world_size() != parallel.launched():
            raise ConfigError(
                f'policy.multi_gpu = True: torchrun has started {parallel.launched()} processes, which have not met; '
                'start them with torchrun -m ding_grpo.'
            )
        parallel.broadcast(list(model.state_dict().values()))

    def _bind(self, spec: Any, spaces: Optional[Tuple] = None) -> None:
        """
        Overview:
            What the workers tell the policy of the environment, through ``get_attribute('bind')``.
        Arguments:
            - spec (:obj:`Any`): The environment's ``token_spec``, None if it has none.
            - spaces (:obj:`Optional[Tuple]`): The spaces of its observations and its actions.
        Raises:
            - ConfigError: If environment and model do not go together.
        """
        self._actor.bind(spec, spaces)
        if self._cfg.learn.reward_aggregation == 'normalize_then_sum':
            self._advantage = self._advantage._replace(part_weights=spec.reward_weights)
        if self._reference is not None:
            self._actor.bind_reference(self._reference)

    def _get_token_spec(self) -> Any:
        return self._actor.spec

    # ------------------------------------------------------------------ learn
    _updater: Optional[Updater] = None
    _reference: Optional[torch.nn.Module] = None  # also None where ``_model`` without its adapters is the reference

    def _init_learn(self) -> None:
        cfg = self._cfg.learn
        self._learn_model = self._model
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        check_trained(trained)
        notice = bfloat16_notice(trained, cfg.learning_rate)
        if notice is not None and parallel.rank() == 0:
            click.echo(notice)
        if cfg.beta > 0 and not self._actor.has_adapters:
            self._reference = copy.deepcopy(self._model).requires_grad_(False)
        if self._actor.has_adapters and cfg.ref_sync_freq is not None:
            raise ConfigError(
                f'policy.learn.ref_sync_freq = {cfg.ref_sync_freq}: the reference of policy.model.lora is the '
                'pretrained model, which cannot be renewed.'
            )
        self._optimizer = torch.optim.AdamW(
            list(trained.values()), lr=cfg.learning_rate, weight_decay=cfg.weight_decay, fused=self._actor.fused
        )
        self._schedule = Schedule(cfg.lr_scheduler, cfg.learning_rate)
        self._updater = Updater(
            cfg, self._get_batch_size(),
            loss_options(cfg)[0], self._actor, self._model, self._optimizer
        )
        self._updates = 0

    def _forward_learn(self, data: List[Dict[str, Any]]) -> Dict[str, float]:
        """
        Overview:
            One update, see ``update.py``.
        Arguments:
            - data (:obj:`List[Dict]`): Groups from ``get_train_sample``.
        Returns:
            - metrics (:obj:`Dict[str, float]`): See docs/metrics.md.
        """
        start = time.perf_counter()
        cfg = self._cfg.learn
        if 'replay_unique_id' in data[0]:
            check_replay(self._cfg)
        batch = Batch.of(data)
        metrics = batch_metrics(batch, self._actor.length_name)
        metrics['staleness_max'] = float(max(g.get('staleness', 0) for g in data))
        metrics['cur_lr'] = self._schedule.rate(self._updates)
        for section in self._optimizer.param_groups:
            section['lr'] = metrics['cur_lr']
        with memory_advice('learning', self._actor.memory_advice(self._cfg)):
            metrics.update(self._updater.run(self._to_learn(batch), self._updates))
        self._updates += 1
        if self._reference is not None and cfg.ref_sync_freq is not None and self._updates % cfg.ref_sync_freq == 0:
            self._sync_reference(cfg.ref_sync_mixup)
        for name in ('replaced_groups', 'seconds_sampling', 'seconds_scoring'):
            metrics[name] = float(sum(g[name] for g in data))
        metrics['seconds_updating'] = time.perf_counter() - start
        seconds = sum(metrics[f'seconds_{part}'] for part in ('sampling', 'scoring', 'updating'))
        metrics[self._actor.rate_name] = batch.weight.sum().item() / seconds
        return metrics

    def _to_learn(self, batch: Batch) -> Batch:
        """The rows of a batch that are learned from, with their advantages and, for a KL term, ``logp_ref``."""
        cfg = self._cfg.learn
        learned = replace(batch, adv=self._advantage.of(batch))
        if cfg.mask_truncated:
            learned.weight = batch.weight * ~batch.truncated.unsqueeze(1)
        learned = learned.without(batch.failed | batch.equal if cfg.drop_equal_groups else batch.failed)
        if cfg.beta > 0:
            with self._actor.without_adapters():
                learned.logp_ref = self._updater.read(learned, self._reference)
        return learned

    @torch.no_grad()
    def _sync_reference(self, mixup: float) -> None:
        for ref, new in zip(self._reference.parameters(), self._model.parameters()):
            ref.lerp_(new, mixup)

    def _advantages(self, samples: List[Dict[str, Any]]) -> List[torch.Tensor]:
        """
        Overview:
            For the collector's table, through ``get_attribute('advantages')``: the advantage of each row, or its mean \
            over steps.
        Arguments:
            - samples (:obj:`List[Dict]`): Groups from ``get_train_sample``.
        Returns:
            - adv (:obj:`List[torch.FloatTensor]`): :math:`(G, )` each.
        """
        batch = Batch.of(samples)
        adv = self._advantage.of(batch)
        if adv.dim() == 2:
            adv = row_mean(adv, batch.weight)
        return list(adv.split([len(s['action']) for s in samples]))

    def _monitor_vars_learn(self) -> List[str]:
        return [name for name in STEP_METRICS if name != 'kl' or self._cfg.learn.beta > 0] + [
            'staleness_max', 'cur_lr', *OUTCOMES, 'reward_mean', 'reward_std', 'equal_groups', 'replaced_groups',
            'truncated', 'failed', 'seconds_sampling', 'seconds_scoring', 'seconds_updating', self._actor.rate_name,
            *(f'{self._actor.length_name}_{n}' for n in ('mean', 'min', 'max'))
        ]

    def _state_dict_learn(self) -> Dict[str, Any]:
        check_weights(self._model, f'after update {self._updates}')  # a run could not go on from them
        state = dict(
            model=self._model.state_dict(),
            optimizer=self._optimizer.state_dict(),
            shuffle=self._updater.shuffle.get_state(),
            updates=self._updates,
            bad_updates=self._updater.bad_updates.in_a_row,
            optimizer_steps=self._updater.optimizer_steps,
            **self._actor.state_dict(),
        )
        if self._cfg.learn.ref_sync_freq is not None:  # else it is what the config makes
            state['reference'] = self._reference.state_dict()
        return state

    def _load_state_dict_learn(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict)
        self._optimizer.load_state_dict(state_dict['optimizer'])
        self._updater.shuffle.set_state(state_dict['shuffle'])
        self._updates, self._updater.bad_updates.in_a_row = state_dict['updates'], state_dict['bad_updates']
        # in checkpoints of older versions there is no such number, nor in their groups
        self._updater.optimizer_steps = state_dict.get('optimizer_steps', 0)
        self._actor.load_state_dict(state_dict)
        if self._cfg.learn.ref_sync_freq is not None:
            if 'reference' not in state_dict:
                raise ConfigError(
                    f'policy.learn.ref_sync_freq = {self._cfg.learn.ref_sync_freq}: the checkpoint holds no reference, '
                    'it was saved without; leave it out to go on.'
                )
            self._reference.load_state_dict(state_dict['reference'])

    # ---------------------------------------------------------------- collect
    def _init_collect(self) -> None:
        self._collect_model = self._model
        self._unroll_len = self._cfg.collect.unroll_len
        self._priority = self._cfg.priority

    def _forward_collect(self, data: Dict[int, Any], row_keys: Dict[int, Tuple]) -> Dict[int, Any]:
        """
        Overview:
            Sample an action for each environment, all in one batch; a language model's is a whole completion.
        Arguments:
            - data (:obj:`Dict[int, Any]`): Observations by environment.
            - row_keys (:obj:`Dict[int, Tuple]`): (collect, group, row) by environment, from the group \
                collector.
        Returns:
            - output (:obj:`Dict[int, Dict]`): ``action`` and its ``logp`` by environment.
        """
        with memory_advice('sampling',
                           f'Fewer rows at a time need less: lower env.collector_env_num, now {len(data)}.'):
            return self._actor.sample(data, row_keys)

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
            - transitions (:obj:`List[List[Dict]]`): Per episode of the group its transitions.
        Returns:
            - samples (:obj:`List[Dict]`): One sample, see ``fold_group``; with ``equal``, see ``Advantage.equal``, \
                and ``sampled_after``, the steps of the optimizer that have made the weights.
        """
        sample = fold_group(transitions, self._cfg.collect.shared_start)
        equal = self._advantage.equal(Batch.of([sample]))
        steps = 0 if self._updater is None else self._updater.optimizer_steps
        return [dict(sample, equal=equal, sampled_after=steps)]

    def _reset_collect(self, data_id: Optional[List[int]] = None) -> None:
        self._actor.forget(data_id)

    # ------------------------------------------------------------------- eval
    def _init_eval(self) -> None:
        self._eval_model = self._model

    def _forward_eval(self, data: Dict[int, Any], row_keys: Optional[Dict[int, Tuple]] = None) -> Dict[int, Any]:
        """
        Overview:
            The likeliest token or action each time; with ``row_keys`` sampled ones, as in ``_forward_collect``.
        """
        return self._actor.greedy(data) if row_keys is None else self._actor.sample(data, row_keys)

    def _load_state_dict_eval(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict)

    def _load_weights(self, state_dict: Dict[str, Any]) -> None:
        try:
            self._model.load_state_dict(state_dict['model'])
        except (KeyError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f'policy.model = {dict(self._cfg.model)!r:.300}: the checkpoint is of another one ({describe(error)})'
            ) from error
        check_weights(self._model, 'the checkpoint')

    def _reset_eval(self, data_id: Optional[List[int]] = None) -> None:
        self._actor.forget(data_id)


@POLICY_REGISTRY.register('grpo_command')
class GRPOCommandModePolicy(GRPOPolicy, DummyCommandModePolicy):
    """
    Overview:
        ``grpo`` as DI-engine's serial pipelines ask for it.
    """
