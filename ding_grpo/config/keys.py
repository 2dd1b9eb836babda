"""
The keys of ``policy`` in a config whose policy type is ``grpo``: default, meaning, and rule. ``grpo_check.py`` and
``loss_options.py`` check whether their values are consistent with each other.
"""
from typing import Any, Dict, NamedTuple, Tuple

from transformers import SchedulerType

from ding_common import MOST, Rule
from ding_grpo.rl_utils import (
    ADVANTAGE_METHODS, CORRECTIONS, DIVERGENCES, KL_TYPES, LOSS_PRESETS, RATIOS, REDUCTIONS, efficient_method,
    less_efficient_method, linear_log_prob, naive_method
)

# Values of ``learn.adv_method`` that compare a row with those of all groups.
UNGROUPED_METHODS = ('reinforce_plus_plus', )
# Those with which a group may have one row.
SINGLE_ROW_METHODS = (*UNGROUPED_METHODS, 'remax')
LOG_PROB_FNS = {f.__name__: f for f in (linear_log_prob, efficient_method, naive_method, less_efficient_method)}

_SHADOW = Rule(
    f"'all' or a list of presets: {', '.join(LOSS_PRESETS)}", lambda v: v == 'all' or
    (isinstance(v, (list, tuple)) and all(isinstance(name, str) and name in LOSS_PRESETS for name in v))
)

# Without the schedules that need a metric at each step.
SCHEDULES = [t.value for t in SchedulerType if t.value not in ('reduce_lr_on_plateau', 'greedy')]


class Key(NamedTuple):
    """
    Overview:
        A default and the allowed values. A key without a rule accepts any value of its default's type.
    """
    default: Any
    rule: Rule


_PASS_AT = Rule(
    'a list of integers of at least 1', lambda v: isinstance(v, (list, tuple)) and all(map(Rule.integer(1).holds, v))
)

_LOGIT_BIAS = Rule(
    'a list of pairs (token, number), a token being an id of at least 0 or a text',
    lambda v: isinstance(v, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in v) and
    all((isinstance(token, str) or Rule.integer(0).holds(token)) and Rule.number().holds(bias) for token, bias in v)
)

KEYS = dict(
    # (str) Registered name of the policy.
    type='grpo',
    # (bool) Whether to use a GPU. An error on a machine without one.
    cuda=Key(False, Rule.one_of(True, False)),
    # (bool) Whether the processes that ``torchrun`` started share one run, on GPUs or not (docs/guides/scaling.md).
    # Groups, mini-batches and results are the same as with one process.
    multi_gpu=Key(False, Rule.one_of(True, False)),
    # (Union[bool, str]) Whether each process keeps only its part of the weights, the gradients and the optimizer's
    # state (FSDP2, docs/guides/scaling.md), for a model that does not fit on one GPU. True: the model is divided among
    # all processes. 'machine': among those of each machine. Needs ``multi_gpu``. For language models.
    shard=Key(False, Rule.one_of(True, False, 'machine')),
    # (bool) Whether the data comes from the policy that is trained. Read by DI-engine's collectors.
    on_policy=True,
    # (bool) Priorities of a replay buffer, which are not supported. Read by DI-engine's pipelines.
    priority=Key(False, Rule('False: groups have no priorities', lambda v: v is False)),
    # (int) Trajectories from one start, at least 2; 1 is allowed with ``learn.advantage='gae'`` or 'none' and with
    # ``learn.adv_method='reinforce_plus_plus'`` or ``'remax'``. Raise it when most groups have equal rewards.
    group_size=Key(8, Rule.integer(1, MOST)),
    # (dict) Arguments of the registered model. ``causal_lm`` needs either ``pretrained`` or ``config``.
    model=dict(),
    # (Optional[dict]) A language model that the policy learns from on its own rows, arguments as of ``model``, with
    # ``pretrained``. Another vocabulary is compared by the strings of tokens (docs/tutorials/teacher.md). None: no
    # teacher.
    teacher=Key(None, Rule('None or a dict', lambda v: v is None or isinstance(v, dict))),
    learn=dict(
        # (int) Passes over the groups of one collect. Values above 1 reuse samples, within the clipping range.
        epoch_per_collect=Key(1, Rule.integer(1, MOST)),
        # (Optional[float]) Stop the epochs of an update once the KL (k3) from the sampling policy exceeds this. About
        # 0.02 makes many epochs safe. None: never stop. Not available with a replay buffer, whose samples are from
        # older policies.
        target_kl=Key(None,
                      Rule.number(0, open_low=True).or_none()),
        # (Optional[float]) Stop the epochs of an update once the largest importance ratio of a mini-batch
        # (``ratio_max``) exceeds this. It catches a few tokens that diverge while the KL, a mean, stays small. Above 1;
        # 10 is a typical value. None: never stop.
        max_ratio=Key(None,
                      Rule.number(1, open_low=True).or_none()),
        # (int) An optimizer step whose loss or gradient is NaN or infinite is skipped and reported. After this many
        # updates in a row with such a step the run stops and reports where the first such value appeared.
        max_bad_updates=Key(5, Rule.integer(1)),
        # (Optional[int]) Updates after which the run ends, as with ``--train-iter`` on the command line; the smaller
        # number counts. None: it ends at ``env.stop_value`` or by the command line.
        num_updates=Key(None,
                        Rule.integer(1).or_none()),
        # (int) Groups in a mini-batch. If equal to ``n_sample``, each epoch takes one optimizer step.
        batch_size=Key(8, Rule.integer(1)),
        # (Optional[int]) Steps in a mini-batch, drawn from all groups of the update, instead of ``batch_size`` groups.
        # For long episodes: the policy learns more from each collect. Not available for language models.
        batch_steps=Key(None,
                        Rule.integer(1).or_none()),
        # (Optional[int]) Maximum number of tokens, of prompts and completions, that learning reads at a time. Larger
        # mini-batches are divided and their gradients accumulated. It changes memory, not results. Lower it when out
        # of memory.
        micro_batch_tokens=Key(None,
                               Rule.integer(1).or_none()),
        # (int) Updates between two collects. Read by ``ding -m serial`` only.
        update_per_collect=Key(1, Rule.integer(1, MOST)),
        # (float) Learning rate of AdamW. Rates of the shipped configs: pretrained models 1e-6 (0.5 B parameters) and
        # 1e-5 to 2e-5 (0.1 B); LoRA 2e-5 (0.5 B); language models of up to some million parameters, trained from
        # scratch, 1e-4 to 5e-4; the networks of CartPole, Acrobot, Pendulum and LunarLander 3e-4 to 3e-3.
        learning_rate=Key(1e-5, Rule.number(0, open_low=True)),
        # (float) Weight decay of AdamW.
        weight_decay=Key(0.0, Rule.number(0)),
        lr_scheduler=dict(
            # (str) A schedule of ``transformers.get_scheduler``. It counts updates, including those without an
            # optimizer step. A decay helps to keep a solved task solved.
            type=Key('constant', Rule.one_of(*SCHEDULES)),
            # (int) Updates W of the warm-up: the rate grows from 1 / W in the first to the full rate in the last.
            num_warmup_steps=Key(0, Rule.integer(0)),
            # (Optional[int]) Updates after which a decaying schedule ends, usually ``num_updates``. Not needed for
            # 'constant'.
            num_training_steps=Key(None,
                                   Rule.integer(1).or_none()),
            # (dict) Further arguments of the schedule, such as ``min_lr_rate``.
            specific=dict(),
        ),
        # (float) Largest norm of the gradient. Lower it when the loss jumps.
        grad_clip_value=Key(1.0, Rule.number(0, open_low=True)),
        # (str) A preset of the choices below, by the name of its paper: grpo, bnpo, dr_grpo, dapo, cispo, sapo, gspo,
        # luspo, dppo_tv, dppo_kl, gmpo, gpg, dro, clip_cov, kl_cov, vespo, cpgd (docs/reference/losses.md). A choice
        # that is None takes the preset's value.
        loss=Key('grpo', Rule.one_of(*LOSS_PRESETS)),
        # (Optional[float]) Clipping range of the probability ratio, in (0, 1]. None: the preset's.
        clip_ratio=Key(None,
                       Rule.number(0, 1, open_low=True).or_none()),
        # (Optional[float]) Clipping range above 1. None: ``clip_ratio``. Raise it to let rare good tokens grow faster.
        clip_ratio_high=Key(None,
                            Rule.number(0, open_low=True).or_none()),
        # (Optional[float]) Bound of the ratio for negative advantages, greater than 1 + the clipping range.
        delta=Key(None,
                  Rule.number(1, open_low=True).or_none()),
        # (Optional[str]) 'token' for a ratio per token, 'sequence' for a ratio per row.
        ratio=Key(None,
                  Rule.one_of(*RATIOS).or_none()),
        # (Optional[str]) 'clip', 'cispo', 'sapo', 'dppo_tv', 'dppo_kl', 'geo_mean', 'gpg', 'dro', 'clip_cov',
        # 'kl_cov', 'vespo', 'cpgd', or 'module:function' for your own (docs/reference/losses.md).
        surrogate=Key(None,
                      Rule('the name of a surrogate', lambda v: isinstance(v, str)).or_none()),
        # (dict) Options of that surrogate by name, such as ``dict(dual_clip=3.0)`` of 'clip'
        # (docs/reference/losses.md).
        surrogate_options=dict(),
        # (Optional[str]) Divisor of the loss of a token: 'sequence', 'token', 'constant' or 'sum'
        # (docs/reference/losses.md).
        reduction=Key(None,
                      Rule.one_of(*REDUCTIONS).or_none()),
        # (float) Coefficient of the KL to the reference: the initial policy, or the one that ``ref_sync_freq`` renews.
        # 0: no reference. Raise it to keep the policy near the reference.
        beta=Key(0.0, Rule.number(0)),
        # (str) Estimator of that KL: k1, k2 or k3.
        kl_type=Key('k3', Rule.one_of(*KL_TYPES)),
        # (bool) Whether ``beta`` times that KL of the sampling policy is subtracted from the reward of each token, in
        # place of a term of the loss. Its advantage then takes the KL of later tokens into account. Not with
        # ``reward_aggregation='normalize_then_sum'``.
        kl_in_reward=Key(False, Rule.one_of(True, False)),
        # (Optional[float]) KL that ``beta`` follows: it grows by up to 20 % in ``kl_horizon`` rows while ``kl`` is
        # larger, and falls while it is smaller. None: ``beta`` is constant.
        kl_target=Key(None,
                      Rule.number(0, open_low=True).or_none()),
        # (int) Rows in which ``beta`` changes by up to 20 %. Lower it for a short run.
        kl_horizon=Key(10000, Rule.integer(1)),
        # (bool) Whether the KL is multiplied by the ratio, which corrects it when groups are used more than once.
        kl_ratio_correction=False,
        # (Optional[str]) How advantages are computed, see ``group_advantage``; two methods for single tokens, see
        # ``token_advantage``: 'reinforce_plus_plus', 'optimal_token_baseline'. None: the preset's. 'grpo'
        # divides by the group's standard deviation. 'no_std' does not divide. It is better when the division would
        # scale a small part of the reward, such as a format bonus, up to the size of the answer's. With
        # ``advantage='gae'``: None or 'batch' normalises over all steps of the update, 'no_std' does not normalise.
        adv_method=Key(
            None,
            Rule.one_of(*ADVANTAGE_METHODS, 'reinforce_plus_plus', 'optimal_token_baseline', 'remax').or_none()
        ),
        # (str) What a group compares. 'outcome': the return of each trajectory. 'return_to_go': the return from each
        # step on, among all steps of the group. 'return_to_go_by_step': the same, among the same step of all rows,
        # including rows that have ended. These two are for long episodes. 'gae': nothing; a critic predicts the return
        # of each step (generalized advantage estimation), as in PPO. A group may then have one row. With several turns
        # (``env.max_turns``) a step is a turn; 'return_to_go' is then refused, because it is biased. 'anchor': the
        # outcome, and the return from each turn on among the rows that took one in the same state (``Reply.anchor``).
        # 'none': 0 for all, so that the reward is only logged, for a teacher or demonstrations; one row is enough.
        advantage=Key(
            'outcome', Rule.one_of('outcome', 'return_to_go', 'return_to_go_by_step', 'anchor', 'gae', 'none')
        ),
        # (float) With 'anchor': weight of the comparison of states beside that of outcomes.
        anchor_weight=Key(1.0, Rule.number(0, open_low=True)),
        # (Optional[dict]) With 'gae': a language model for the values, arguments as of ``policy.model``. None: a value
        # head on the policy's model, which costs little. Other models contain their values, as 'vac' does.
        critic=Key(None, Rule('None or a dict', lambda v: v is None or isinstance(v, dict))),
        # (Optional[float]) With 'gae': 0 trusts the critic for all later steps, 1 uses it as a baseline only. None:
        # 0.95. 1 for completions that are rewarded at their end.
        gae_lambda=Key(None,
                       Rule.number(0, 1).or_none()),
        # (Optional[float]) With 'gae': coefficient of the critic's loss, half the squared error. None: 0.5. Lower it
        # when returns are large.
        value_weight=Key(None,
                         Rule.number(0, open_low=True).or_none()),
        # (bool) With 'gae': whether the critic predicts returns divided by their running standard deviation. Use it for
        # returns much larger than 1, whose squared errors would dominate the gradient.
        value_norm=Key(False, Rule.one_of(True, False)),
        # (Optional[float]) With 'gae': clipping range of the change of a value in an update. None: no clipping.
        value_clip=Key(None,
                       Rule.number(0, open_low=True).or_none()),
        # (int) With 'gae': updates at the start that train the value head only, until its predictions are useful.
        value_warmup=Key(0, Rule.integer(0)),
        # (bool) Whether an episode that a time limit truncated counts as if it continued forever with its last reward.
        # For 'return_to_go' with a discount, where the steps before the limit look worse than they are otherwise.
        extend_truncated=False,
        # What the policy learns from ``policy.teacher``.
        distillation=dict(
            # (float) Coefficient of the divergence from the teacher. Lower it beside a reward.
            weight=Key(1.0, Rule.number(0, open_low=True)),
            # (str) 'reverse_kl', KL(policy || teacher): the policy keeps to what the teacher finds likely.
            # 'forward_kl', KL(teacher || policy): it covers all that the teacher finds likely. 'jsd': a mix of both.
            divergence=Key('reverse_kl', Rule.one_of(*DIVERGENCES)),
            # (float) For 'jsd': the teacher's share of the mixture, in (0, 1). Near 0 as 'forward_kl', near 1 as
            # 'reverse_kl', each times its smaller share.
            mix=Key(0.5, Rule('a number in (0, 1)', lambda v: Rule.number(0, 1, True).holds(v) and v < 1)),
            # (bool) Whether to sum over the whole vocabulary. False estimates from the sampled token: faster, noisier.
            exact=Key(True, Rule.one_of(True, False)),
        ),
        # Supervised tokens in each update: right completions of training problems (``Task.demonstration``). For
        # language models.
        demonstrations=dict(
            # (float) Number of demonstrations in a mini-batch, relative to its rows. Use some where the policy hardly
            # ever solves a problem. 0: none.
            share=Key(0.0, Rule.number(0, MOST)),
            # (float) Coefficient of their mean negative log-probability.
            weight=Key(1.0, Rule.number(0, open_low=True)),
        ),
        # (str) How log-probabilities are computed. 'linear_log_prob': from hidden states, with the least memory. For
        # models whose output layer it does not support, from logits: 'efficient_method', or the plain 'naive_method'
        # and 'less_efficient_method'.
        log_prob_fn=Key('linear_log_prob', Rule.one_of(*LOG_PROB_FNS)),
        # (float) Coefficient of an entropy bonus. Raise it when the entropy collapses before the task is solved.
        entropy_weight=Key(0.0, Rule.number(0)),
        # (Optional[float]) Entropy in nats that this coefficient follows, from ``entropy_weight`` on: it grows by
        # ``entropy_step`` after an update with at most this entropy, and otherwise falls. The bonus acts only below
        # the target. None: the coefficient is constant.
        entropy_target=Key(None,
                           Rule.number(0, open_low=True).or_none()),
        # (float) Change of the coefficient in an update with ``entropy_target``.
        entropy_step=Key(0.005, Rule.number(0, open_low=True)),
        # (Optional[float]) Learn only from this share of the update's tokens, those of highest entropy, in (0, 1]. The
        # mean of the loss still counts all tokens; KL and entropy bonus act on all. Costs one more forward pass. None:
        # all tokens. 0.2 in https://arxiv.org/abs/2506.01939.
        top_entropy=Key(None,
                        Rule.number(0, 1, open_low=True).or_none()),
        # (Optional[str]) For groups that older weights sampled, and for sampling in another number format. Ratios are
        # relative to the policy at the start of the update, and each advantage is multiplied by the truncated
        # importance weight of this policy relative to the sampler: of each 'token', or of the whole 'sequence'
        # (docs/reference/losses.md). Costs one more forward pass. None: ratios are relative to the sampler.
        sampler_correction=Key(None,
                               Rule.one_of(*CORRECTIONS).or_none()),
        # (float) Largest importance weight of ``sampler_correction``, at least 1. ``correction_cut`` shows how often
        # it acts.
        sampler_correction_bound=Key(2.0, Rule.number(1)),
        # (Optional[float]) Mask negative advantages in rows from which the policy has moved far away: more than this
        # mean of ``logp_old - logp_new`` over the row's tokens, in nats. None: no row. It costs the same forward pass
        # (off-policy sequence masking, https://arxiv.org/abs/2512.02556).
        off_policy_mask=Key(None,
                            Rule.number(0, open_low=True).or_none()),
        # (bool) Whether to skip groups with equal rewards, and with them their KL and entropy terms. It saves time and
        # changes the mean of the loss.
        drop_equal_groups=False,
        # (bool) Whether completions that the length limit truncated are masked in the loss. They still count in the
        # comparison of their group. For tasks whose answer comes last, if truncation says nothing about quality.
        mask_truncated=False,
        # (str) For several reward parts. 'sum_then_normalize' compares their weighted sum. 'normalize_then_sum' (GDPO,
        # https://arxiv.org/abs/2601.05242) compares each part separately, sums the advantages and divides them by
        # their standard deviation over the batch, so that no part dominates. It needs ``adv_method='grpo'``.
        reward_aggregation=Key('sum_then_normalize', Rule.one_of('sum_then_normalize', 'normalize_then_sum')),
        # (Optional[int]) Updates between two renewals of the reference, as in the iterative GRPO of the paper, or in
        # https://arxiv.org/abs/2404.09656 with a mixup below 1. None: the reference stays the initial policy.
        ref_sync_freq=Key(None,
                          Rule.integer(1).or_none()),
        # (float) Share of the policy in the renewed reference, in (0, 1].
        ref_sync_mixup=Key(1.0, Rule.number(0, 1, open_low=True)),
        # (Union[str, List[str]]) Shadow losses: presets whose loss and gradient are measured beside the loss in use,
        # which they do not change (docs/guides/instruments.md). 'all': every preset that the run allows.
        shadow=Key([], _SHADOW),
        # (int) Updates between two that also measure the gradients of shadow losses in the weights, for one backward
        # pass for each loss. 0: never.
        shadow_every=Key(0, Rule.integer(0)),
        # (int) Updates between two that also measure the noise scale in the weights (docs/guides/instruments.md), for
        # one more forward and backward pass. 0: never.
        noise_every=Key(0, Rule.integer(0)),
        # (bool) Whether to resume the run in its folder from the newest checkpoint, or from the one that
        # ``learner.hook.load_ckpt_before_run`` names. The result is bit-identical to a run without interruption on a
        # CPU, and equal up to rounding on a GPU.
        resume_training=Key(False, Rule.one_of(True, False)),
        # (int) How many of the newest periodic checkpoints are kept, besides ckpt_best. The run deletes older ones,
        # also of ``learner.hook.save_ckpt_after_iter``; raise it to keep them.
        keep_ckpt=Key(3, Rule.integer(1)),
        # (Optional[int]) Updates between two records of every token in log/learner/tokens.jsonl: log-probability before
        # and after the update, entropy, advantage. ``python -m ding_grpo.report`` shows them
        # (docs/guides/instruments.md). A record takes three forward passes. None: no record.
        tokens_freq=Key(None,
                        Rule.integer(1).or_none()),
        learner=dict(
            # (bool) Whether to log the layers of the model at the start.
            log_policy=False,
            hook=dict(
                # (int) Updates between two tables in the text log of the learner. A table shows means over ten updates.
                log_show_after_iter=10,
                # (int) Updates between two checkpoints, which ``resume_training`` reads.
                save_ckpt_after_iter=100,
                # (bool) Whether to save a checkpoint at the end. DI-engine always does.
                save_ckpt_after_run=True,
                # (dict) The progress display and the saved results, see ``ding_grpo.run.report``.
                report=dict(name='report', type='grpo_report', position='before_run', priority=90, ext_args=dict()),
            ),
        ),
    ),
    collect=dict(
        # (int) Groups in one collect.
        n_sample=Key(8, Rule.integer(1, MOST)),
        # (int) Number of rows that a group samples in addition to ``group_size``. As many of its rows, the longest, are
        # dropped unscored, and sampling stops when all others have ended. Faster where few rows are much longer than
        # most, and biased towards short rows (docs/guides/options.md). ``env.collector_env_num`` must be a multiple of
        # ``group_size`` + ``extra_rows``. For language models. 0: none.
        extra_rows=Key(0, Rule.integer(0, MOST)),
        # (int) Largest number of episodes that each collector environment runs in a collect, which is ``n_sample`` x
        # (``group_size`` + ``extra_rows``) / ``env.collector_env_num``. A larger number is an error, because it is
        # mostly a number of steps by mistake. Raise it if it is meant.
        max_episodes_per_env=Key(16, Rule.integer(1)),
        # (str) Which problem each group of a token environment gets. 'epoch': in shuffled epochs, every problem once
        # before any of them twice. 'random': each drawn from all problems, with replacement. 'pools': in shuffled
        # epochs, in which easy and hard problems come less often (curriculum).
        problem_order=Key('epoch', Rule.one_of('epoch', 'random', 'pools')),
        # For ``problem_order='pools'``.
        pools=dict(
            # (float) Smallest return of a success. The success rate of a problem is the share of its completions.
            success_from=Key(1.0, Rule.number()),
            # (float) Weight of a problem's newest group in its success rate, in (0, 1]. 1: only that group counts.
            newest=Key(0.5, Rule.number(0, 1, open_low=True)),
            # (float) Problems with at least this success rate are easy.
            easy_from=Key(0.9, Rule.number(0, 1)),
            # (float) Problems with at most this success rate are hard. Below ``easy_from``.
            hard_to=Key(0.1, Rule.number(0, 1)),
            # (float) Probability that an easy problem comes in an epoch, in (0, 1]. It must come now and then, because
            # its success rate may have fallen.
            easy_share=Key(0.25, Rule.number(0, 1, open_low=True)),
            # (float) Probability that a hard problem comes in an epoch, in (0, 1].
            hard_share=Key(0.5, Rule.number(0, 1, open_low=True)),
        ),
        # (float) Logits are divided by it. 1 samples from the model's own distribution.
        temperature=Key(1.0, Rule.number(0, open_low=True)),
        # (Optional[int]) Sample from this many most probable tokens only. Their ids are stored with each token.
        top_k=Key(None,
                  Rule.integer(1).or_none()),
        # (Optional[float]) Sample from the fewest tokens whose probabilities sum to it, in (0, 1]. Without ``top_k``
        # they can be most of the vocabulary, and a sampled token stores up to V / 8 bytes.
        top_p=Key(None,
                  Rule.number(0, 1, open_low=True).or_none()),
        # (Optional[float]) Sample from the tokens with at least this share of the largest probability, in (0, 1]. 0.05
        # to 0.1 are typical. Adapts to how certain the model is.
        min_p=Key(None,
                  Rule.number(0, 1, open_low=True).or_none()),
        # (Optional[float]) Sample from the fewest tokens whose probabilities sum to it, those first whose information
        # is nearest to the entropy, in (0, 1] (https://arxiv.org/abs/2202.00666).
        typical_p=Key(None,
                      Rule.number(0, 1, open_low=True).or_none()),
        # (float) Logits of tokens that the row contains, prompt included, are divided by it if they are positive and
        # multiplied by it if not. Above 1 against repetition. 1: no change. Evaluations use it too.
        repetition_penalty=Key(1.0, Rule.number(0, open_low=True)),
        # (List) Pairs of a token, as its id or its text, and a number that is added to its logit, such as
        # ``[('<think>', 2.0), (17, -100.0)]``. Evaluations use it too.
        logit_bias=Key([], _LOGIT_BIAS),
        # (Optional[str]) A grammar: ``'module:function'`` of your own (docs/guides/options.md). The function gets the
        # token ids before the turn, those of the turn so far, and ``tokenizer``. It returns the ids that may follow, or
        # None for all. It must not draw random numbers. Evaluations use it too.
        allowed_tokens=Key(None,
                           Rule("'module:function'", lambda v: isinstance(v, str) and ':' in v).or_none()),
        # (Optional[str]) 'bfloat16': sample in bfloat16, and learn and evaluate in the model's own arithmetic. Sampling
        # reads half as much memory. Ratios are relative to the learner's own log-probabilities; ``sampler_gap_mean``
        # shows how far the sampler's are from them (docs/reference/metrics.md). For language models.
        autocast=Key(None,
                     Rule.one_of('bfloat16').or_none()),
        # (float) Discount of rewards, by step; with several turns (``env.max_turns``), by turn. 1 for completions of a
        # language model.
        discount_factor=Key(1.0, Rule.number(0, 1)),
        # (bool) Whether the trajectories of a group start in the same state. False gives each its own start, for
        # environments whose starts hardly differ. Completions of a group always have the same prompt.
        shared_start=True,
        # (int) 1: sample the groups of the next update in another process while this one learns, with the weights
        # before the update (docs/guides/scaling.md). For ``-m serial_onpolicy`` on CPUs, in a run of one process.
        stale=Key(0, Rule.one_of(0, 1)),
        # (int) Read by DI-engine's collectors. A group is always whole, whatever its length.
        unroll_len=Key(1, Rule.integer(1)),
        collector=dict(),
    ),
    eval=dict(
        # (bool) False: evaluate in the type of the weights where ``policy.model.autocast`` learns in another. The saved
        # folder then has the evaluated accuracy also in plain transformers, decoded greedily. For language models.
        autocast=Key(True, Rule.one_of(True, False)),
        evaluator=dict(
            # (int) Updates between two evaluations.
            eval_freq=Key(10, Rule.integer(1)),
            # (int) Episodes of the sampling policy from each start, in addition to the greedy one.
            samples_per_start=Key(0, Rule.integer(0, MOST)),
            # (bool) Whether the return that stops the run and selects the best checkpoint is that of the sampled
            # episodes, at least one from each start, in place of the greedy ones. For tasks whose best policy is
            # random, or stays soft for long. Both returns are reported.
            sample=Key(False, Rule.one_of(True, False)),
            # (List[int]) Values of k for pass@k: the probability that at least one of k samples is correct (unbiased),
            # with a confidence interval over the starts. Needs ``samples_per_start`` of at least k.
            pass_at=Key([], _PASS_AT),
            # (float) Smallest return of a correct sample.
            right_from=Key(1.0, Rule.number()),
            # (float) Largest share of completions in an evaluation that may fail to be scored; the run stops when it
            # is exceeded.
            max_failed=Key(0.1, Rule.number(0, 1)),
        ),
    ),
    other=dict(replay_buffer=dict()),
)


def split(keys: Dict, below: str = '') -> Tuple[Dict, Dict[str, Rule]]:
    """
    Overview:
        The defaults of a section, and its rules by dotted path.
    """
    defaults, rules = {}, {}
    for name, key in keys.items():
        path = f'{below}{name}'
        if isinstance(key, Key):
            defaults[name], rules[path] = key
        elif isinstance(key, dict):
            defaults[name], of_section = split(key, f'{path}.')
            rules.update(of_section)
        else:
            defaults[name] = key
    return defaults, rules


DEFAULTS, RULES = split(KEYS)
