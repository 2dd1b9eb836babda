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
import math
import time
from contextlib import nullcontext
from typing import Any, Dict, Iterator, List, Optional, Tuple

import click
import torch
from ding.policy import Policy
from ding.policy.command_mode_policy_instance import DummyCommandModePolicy
from ding.torch_utils import to_device
from ding.utils import POLICY_REGISTRY
from transformers import PreTrainedModel

from ding_common import ConfigError, describe, parallel
from ding_grpo.model import CausalLM
from ding_grpo.rl_utils import grpo_data, grpo_error, kl_estimate, masked_mean, row_mean, sequence_mean
from ding_grpo.rollout import Sampling

from .advantage import Advantage
from .group import batch_metrics, collate_groups, fold_group, with_rows, without_failed
from .grpo_config import LOG_PROB_FNS, check_for_steps, check_for_tokens, check_policy_config, check_replay, \
    loss_options, model_type
from .half_weights import check_trained, bfloat16_notice
from .micro_batch import memory_advice, share_rows, split_rows, take_rows
from .mini_batches import MiniBatches
from .not_finite import BadUpdates, check_weights, diagnose
from .sampler_gap import fresh_rows, sampler_gap
from .schedule import Schedule
from .step_face import StepFace
from .token_face import TokenFace

# What becomes of a mini-batch, as metrics (docs/metrics.md).
OUTCOMES = ('optimizer_steps', 'skipped_steps', 'empty_steps')


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
        self._bad_updates = BadUpdates(cfg.learn.max_bad_updates)
        self._optimizer_steps = 0  # that have made the weights of now
        self._loss_options, method = loss_options(cfg.learn)
        self._advantage = Advantage(
            method, cfg.learn.advantage, cfg.collect.discount_factor, cfg.learn.extend_truncated
        )
        seed = torch.initial_seed()  # the one that DI-engine set
        if isinstance(self._model, CausalLM):
            sampling = Sampling(cfg.collect.temperature, cfg.collect.top_k, cfg.collect.top_p)
            self._face = TokenFace(self._model, sampling, LOG_PROB_FNS[cfg.learn.log_prob_fn], seed)
            check_for_tokens(cfg)
        else:
            self._face = StepFace(self._model, cfg.collect.temperature, seed)
            check_for_steps(cfg)

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
        return model

    def _init_multi_gpu_setting(self, model: torch.nn.Module, bp_update_sync: bool) -> None:
        if parallel.size() != parallel.launched():
            raise ConfigError(
                f'policy.multi_gpu = True: torchrun has started {parallel.launched()} processes, which have not met; '
                'start them with torchrun -m ding_grpo.'
            )
        parallel.copy_first(list(model.state_dict().values()))

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
        self._face.bind(spec)
        if spec is None and spaces is not None:
            self._face.check_spaces(*spaces)
        if self._cfg.learn.reward_aggregation == 'normalize_then_sum':
            self._advantage = self._advantage._replace(part_weights=spec.reward_weights)
        if spec is not None and getattr(self, '_reference', None) is not None:
            self._reference.limit_vocabulary(spec.vocab_size)
            self._reference.limit_length(spec.max_prompt_length + spec.max_new_tokens)
            self._reference.load_reading_state(self._model.reading_state())

    def _get_token_spec(self) -> Any:
        return getattr(self._face, 'spec', None)

    @property
    def _adapters(self) -> bool:
        return getattr(self._model, 'has_adapters', False)

    # ------------------------------------------------------------------ learn
    def _init_learn(self) -> None:
        cfg = self._cfg.learn
        self._learn_model = self._model
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        check_trained(trained)
        notice = bfloat16_notice(trained, cfg.learning_rate)
        if notice is not None and parallel.rank() == 0:
            click.echo(notice)
        if cfg.log_prob_fn == 'linear_log_prob' and isinstance(self._model, CausalLM):
            self._model.output_head()  # an output layer that does not fit is refused now
        self._reference = None  # None too where the adapters of ``_model`` can be switched off
        if cfg.beta > 0 and not self._adapters:
            self._reference = copy.deepcopy(self._model).requires_grad_(False)
        if self._adapters and cfg.ref_sync_freq is not None:
            raise ConfigError(
                f'policy.learn.ref_sync_freq = {cfg.ref_sync_freq}: the reference of policy.model.lora is the '
                'pretrained model, which cannot be renewed.'
            )
        self._trained = list(trained.values())
        self._optimizer = torch.optim.AdamW(
            self._trained,
            lr=cfg.learning_rate,
            weight_decay=cfg.weight_decay,
            fused=isinstance(self._model, CausalLM) or None,  # one pass over weights, of which there are many
        )
        self._schedule = Schedule(cfg.lr_scheduler, cfg.learning_rate)
        self._shuffle = torch.Generator().manual_seed(torch.initial_seed())
        self._updates = 0

    def _forward_learn(self, data: List[Dict[str, Any]]) -> Dict[str, float]:
        """
        Overview:
            Epochs of mini-batches, of whole groups or, with ``batch_steps``, of steps.
        Arguments:
            - data (:obj:`List[Dict]`): Groups from ``get_train_sample``.
        Returns:
            - metrics (:obj:`Dict[str, float]`): See docs/metrics.md.
        """
        start = time.perf_counter()
        cfg = self._cfg.learn
        if 'replay_unique_id' in data[0]:
            check_replay(self._cfg)
        batch = collate_groups(data)
        metrics = batch_metrics(batch, self._face.length_name)
        metrics['staleness_max'] = float(max(g.get('staleness', 0) for g in data))
        metrics['cur_lr'] = self._schedule.rate(self._updates)
        for section in self._optimizer.param_groups:
            section['lr'] = metrics['cur_lr']
        metrics.update(self._learn(self._learned_groups(data, batch)))
        self._updates += 1
        if self._reference is not None and cfg.ref_sync_freq is not None and self._updates % cfg.ref_sync_freq == 0:
            self._sync_reference(cfg.ref_sync_mixup)
        for name in ('replaced_groups', 'seconds_sampling', 'seconds_scoring'):
            metrics[name] = float(sum(g[name] for g in data))
        metrics['seconds_updating'] = time.perf_counter() - start
        seconds = sum(metrics[f'seconds_{part}'] for part in ('sampling', 'scoring', 'updating'))
        metrics[self._face.rate_name] = batch['weight'].sum().item() / seconds
        return metrics

    def _learned_groups(self, data: List[Dict[str, Any]], batch: Dict[str, Any]) -> List[Dict[str, Any]]:
        """What is learned of the data, ``batch`` when collated: with advantages, (B, ) or (B, S), and ``logp_ref``."""
        cfg = self._cfg.learn
        learned = {}
        if cfg.mask_truncated:
            learned['weight'] = batch['weight'] * (1 - batch['truncated']).unsqueeze(1)
        groups = without_failed(with_rows(data, adv=self._advantage.of(batch), **learned))
        if cfg.drop_equal_groups:
            groups = [g for g in groups if not g['equal']]
        if cfg.beta > 0:
            size = self._get_batch_size()
            chunks = (groups[i:i + size] for i in range(0, len(groups), size))
            groups = [g for chunk in chunks for g in self._with_reference(chunk)]
        return groups

    def _learn(self, groups: List[Dict[str, Any]]) -> Dict[str, float]:
        """Learn from groups, until ``target_kl`` or ``max_ratio`` ends it, and say what was learned."""
        steps: List[Dict[str, float]] = []
        masked = 0
        for mini_batch in self._mini_batches(groups):
            if not mini_batch['weight'].any():  # all was cut and masked, so that there is nothing to measure either
                masked += 1
                continue
            with memory_advice('learning', self._advice()):
                step = self._update(mini_batch)
                if step['skipped_steps'] and not any(s['skipped_steps'] for s in steps):
                    self._bad_updates.add(self._updates, step, lambda: self._diagnose(groups))
            steps.append(step)
            if not any(step[name] for name in OUTCOMES):
                break
        metrics = {name: float(sum(s[name] for s in steps)) for name in OUTCOMES}
        metrics['empty_steps'] += masked
        if steps and not metrics['skipped_steps']:
            self._bad_updates.in_a_row = 0
        steps = [s for s in steps if not s['skipped_steps']]
        for name in self._step_vars():
            values = [s[name] for s in steps if name in s]
            if values:
                metrics[name] = max(values) if name.endswith('_max') else sum(values) / len(values)
        return metrics

    def _diagnose(self, groups: List[Dict[str, Any]]) -> List[str]:
        return diagnose(groups, self._model, lambda group: self._read(self._model, collate_groups([group])))

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
        batch = collate_groups(samples)
        adv = self._advantage.of(batch)
        if adv.dim() == 2:
            adv = row_mean(adv, batch['weight'])
        return list(adv.split([len(s['action']) for s in samples]))

    def _mini_batches(self, groups: List[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
        """All epochs' batches for ``_update``, see the first departure above."""
        cfg = self._cfg.learn
        drawn = MiniBatches(groups, self._get_batch_size(), cfg.batch_steps, self._shuffle)
        if self._face.exact:
            for _ in range(cfg.epoch_per_collect):
                yield from drawn.epoch()
            return
        batches = list(drawn.epoch())
        for batch in batches[1:]:
            if fresh_rows(batch, self._optimizer_steps).any():
                batch['logp_first'] = self._learners_own(batch, self._read(self._model, batch))
        yield from batches
        for _ in range(1, cfg.epoch_per_collect):
            yield from (batches[i] for i in torch.randperm(len(batches), generator=self._shuffle).tolist())

    def _with_reference(self, groups: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """The groups with ``logp_ref`` (G, S), which stays the same however many epochs follow."""
        with self._model.without_adapters() if self._adapters else nullcontext():
            return with_rows(groups, logp_ref=self._read(self._reference or self._model, collate_groups(groups)))

    @torch.no_grad()
    def _read(self, model: torch.nn.Module, batch: Dict[str, Any]) -> torch.Tensor:
        """Log-probabilities (B, S) of a batch's tokens under a model, in the parts that ``_update`` reads."""
        batch = to_device(batch, self._device, ignore_keys=['prompts'])
        logp = torch.zeros_like(batch['logp_old'])
        with memory_advice('learning', self._advice()):
            for rows in split_rows(batch, self._cfg.learn.micro_batch_tokens, share_rows(batch)):
                part = take_rows(batch, rows)
                logp[rows, :part['weight'].shape[1]] = self._face.log_prob(model, part)[0]
        parallel.add([logp])
        return logp.cpu()

    def _learners_own(self, batch: Dict[str, Any], logp: torch.Tensor) -> torch.Tensor:
        """The learner's log-probabilities (B, S) of rows that its weights have sampled, the sampler's of others."""
        return torch.where(fresh_rows(batch, self._optimizer_steps), logp.detach(), batch['logp_old'])

    def _relative_to(self, batch: Dict[str, Any], logp: torch.Tensor) -> torch.Tensor:
        """What ratios are relative to, (B, S), see the first departure above; ``logp`` is the pass under way."""
        if 'logp_first' in batch or self._face.exact:
            return batch.get('logp_first', batch['logp_old'])
        return self._learners_own(batch, logp)

    def _update(self, batch: Dict[str, Any]) -> Dict[str, float]:
        """One step of the optimizer, or none where numbers are not finite, the policy has gone further than
        ``target_kl`` or ``max_ratio`` already (then no value of ``OUTCOMES`` is 1), or the gradient is 0."""
        cfg = self._cfg.learn
        given, batch = batch, to_device(batch, self._device, ignore_keys=['prompts'])
        tokens = batch['weight'].sum().item() if self._loss_options.get('reduction') == 'token' else None
        logp_new, entropy = (torch.zeros_like(batch['logp_old']) for _ in range(2))  # (B, S)
        self._optimizer.zero_grad()
        for rows in split_rows(batch, cfg.micro_batch_tokens, share_rows(batch)):
            part, share = take_rows(batch, rows), len(rows) / len(batch['weight'])
            logp, of_part = self._face.log_prob(self._model, part, cfg.entropy_weight > 0)  # (b, s) both
            total = self._loss(part, logp, tokens)[0] * (1 if tokens is not None else share)
            if cfg.entropy_weight > 0:
                total = total - cfg.entropy_weight * share * sequence_mean(of_part, part['weight'])
            total.backward()
            longest = logp.shape[1]
            logp_new[rows, :longest], entropy[rows, :longest] = logp.detach(), of_part.detach()
        for p in self._trained:
            if p.grad is None:  # nothing of this process's share reaches it
                p.grad = torch.zeros_like(p)
        parallel.add([*(p.grad for p in self._trained), logp_new, entropy])
        gap = sampler_gap(batch, logp_new, fresh_rows(batch, self._optimizer_steps))
        if not self._face.exact:
            given.setdefault('logp_first', self._relative_to(batch, logp_new).cpu())  # for further epochs
        with torch.no_grad():
            loss, info = self._loss(batch, logp_new)
            total = loss - cfg.entropy_weight * sequence_mean(entropy, batch['weight'])
        # ``clip_grad_norm_`` in two: where one gradient is not finite, it would make all of them so
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._trained])
        kl_old = masked_mean(kl_estimate(self._relative_to(batch, logp_new), logp_new, 'k3'), batch['weight']).item()
        step = dict(
            kl_old=kl_old,
            total_loss=total.item(),
            policy_loss=loss.item(),
            entropy=masked_mean(entropy, batch['weight']).item(),
            grad_norm=norm.item(),
            **info._asdict(),
            **gap,
        )
        bounds = ((kl_old, cfg.target_kl), (info.ratio_max, cfg.max_ratio))
        outcome = 'optimizer_steps'
        if not (math.isfinite(step['total_loss']) and math.isfinite(step['grad_norm'])):
            outcome = 'skipped_steps'
        elif any(bound is not None and value > bound for value, bound in bounds):
            outcome = None
        elif step['grad_norm'] == 0:  # by momentum alone AdamW would move the weights, although nothing asks for it
            outcome = 'empty_steps'
        else:
            torch.nn.utils.clip_grads_with_norm_(self._trained, cfg.grad_clip_value, norm)
            self._optimizer.step()
            self._optimizer_steps += 1
        return dict(step, **{name: float(name == outcome) for name in OUTCOMES})

    def _advice(self) -> str:
        cfg = self._cfg.learn
        if not isinstance(self._model, CausalLM):
            return f'Smaller mini-batches need less: policy.learn.batch_size = {cfg.batch_size}.'
        return (
            f'Reading fewer tokens at a time needs less and changes nothing else: policy.learn.micro_batch_tokens = '
            f'{cfg.micro_batch_tokens}; so do policy.model.gradient_checkpointing=True and policy.model.lora.'
        )

    def _loss(self, batch: Dict[str, Any], logp: torch.Tensor, tokens: Optional[float] = None) -> Tuple:
        """Loss and info of rows; with ``tokens``, those of the whole mini-batch, of a part of it."""
        return grpo_error(
            grpo_data(logp, self._relative_to(batch, logp), batch.get('logp_ref'), batch['adv'], batch['weight']),
            max_length=self._face.max_length,
            num_tokens=tokens,
            **self._loss_options,
        )

    def _step_vars(self) -> List[str]:
        names = [
            'total_loss', 'policy_loss', 'entropy', 'grad_norm', 'approx_kl', 'clipfrac', 'clipfrac_low',
            'clipfrac_high', 'kl_old', 'ratio_mean', 'ratio_max', 'effective_sample_size', 'sampler_gap_mean',
            'sampler_gap_max'
        ]
        return names if self._cfg.learn.beta == 0 else names + ['kl']

    def _monitor_vars_learn(self) -> List[str]:
        return self._step_vars() + [
            'staleness_max', 'cur_lr', *OUTCOMES, 'reward_mean', 'reward_std', 'equal_groups', 'replaced_groups',
            'truncated', 'failed', 'seconds_sampling', 'seconds_scoring', 'seconds_updating', self._face.rate_name,
            *(f'{self._face.length_name}_{n}' for n in ('mean', 'min', 'max'))
        ]

    def _state_dict_learn(self) -> Dict[str, Any]:
        check_weights(self._model, f'after update {self._updates}')  # a run could not go on from them
        state = dict(
            model=self._model.state_dict(),
            optimizer=self._optimizer.state_dict(),
            shuffle=self._shuffle.get_state(),
            updates=self._updates,
            bad_updates=self._bad_updates.in_a_row,
            optimizer_steps=self._optimizer_steps,
        )
        if isinstance(self._model, CausalLM):
            state['reading'] = self._model.reading_state()
        if self._cfg.learn.ref_sync_freq is not None:  # else it is what the config makes
            state['reference'] = self._reference.state_dict()
        return state

    def _load_state_dict_learn(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict)
        self._optimizer.load_state_dict(state_dict['optimizer'])
        self._shuffle.set_state(state_dict['shuffle'])
        self._updates, self._bad_updates.in_a_row = state_dict['updates'], state_dict['bad_updates']
        self._optimizer_steps = state_dict.get('optimizer_steps', 0)  # in older checkpoints groups lack it too
        if 'reading' in state_dict:  # not of an older version
            self._model.load_reading_state(state_dict['reading'])
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
            return self._face.sample(data, row_keys)

    def _process_transition(self, obs: Any, policy_output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        """
        Overview:
            Pack one step of one environment.
        """
        return self._face.transition(obs, policy_output, timestep)

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
        equal = self._advantage.equal(collate_groups([sample]))
        return [dict(sample, equal=equal, sampled_after=self._optimizer_steps)]

    def _reset_collect(self, data_id: Optional[List[int]] = None) -> None:
        self._face.forget(data_id)

    # ------------------------------------------------------------------- eval
    def _init_eval(self) -> None:
        self._eval_model = self._model

    def _forward_eval(self, data: Dict[int, Any], row_keys: Optional[Dict[int, Tuple]] = None) -> Dict[int, Any]:
        """
        Overview:
            The likeliest token or action each time; with ``row_keys`` sampled ones, as in ``_forward_collect``.
        """
        return self._face.greedy(data) if row_keys is None else self._face.sample(data, row_keys)

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
        self._face.forget(data_id)


@POLICY_REGISTRY.register('grpo_command')
class GRPOCommandModePolicy(GRPOPolicy, DummyCommandModePolicy):
    """
    Overview:
        ``grpo`` as DI-engine's serial pipelines ask for it.
    """
