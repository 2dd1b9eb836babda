"""The batches of an update, and its optimizer."""
from transformers import SchedulerType

from ding_common import Rule, config_errors
from ding_grpo.rl_utils import efficient_method, less_efficient_method, linear_log_prob, naive_method

from ..key import COUNT, POSITIVE, SIZE, Combination, Key, optional
from ..optimizer import check_optimizer
from ..schedule import Schedule

LOG_PROB_FNS = {f.__name__: f for f in (linear_log_prob, efficient_method, naive_method, less_efficient_method)}
# Without the schedules that need a metric at each step.
SCHEDULES = [t.value for t in SchedulerType if t.value not in ('reduce_lr_on_plateau', 'greedy')]

UPDATE = dict(
    # (int) Groups in a mini-batch. If equal to ``collect.groups``, each epoch takes one optimizer step.
    batch_groups=Key(8, COUNT),
    # (Optional[int]) Steps in a mini-batch, drawn from all groups of the update, instead of ``batch_groups`` groups.
    # For long episodes: the policy learns more from each collect. Not available for language models and
    # models with a memory.
    batch_steps=optional(COUNT),
    # (Union[int, str, None]) Maximum number of tokens, of prompts and completions, that learning reads at a time.
    # Larger mini-batches are divided and their gradients accumulated. It changes memory and time, not results. Lower
    # it when out of memory. 'auto': 4096 on processors and 8192 on GPUs, or more where prompts would be read too
    # often; steps of other models and pairs of ``preference`` are not divided. None: never divide.
    micro_batch_tokens=Key(
        'auto', Rule(f"{COUNT.allowed}, 'auto' or None", lambda v: v in ('auto', None) or COUNT.holds(v))
    ),
    # (int) Passes over the groups of one collect. Values above 1 reuse samples, within the clipping range.
    epoch_per_collect=Key(1, SIZE),
    # (Optional[float]) Stop the epochs of an update once the KL (k3) from the sampling policy exceeds this. About
    # 0.02 makes many epochs safe. None: never stop. Not available with a replay buffer, whose samples are from
    # older policies.
    target_kl=optional(POSITIVE),
    # (Optional[float]) Stop the epochs of an update once the largest importance ratio of a mini-batch
    # (``ratio_max``) exceeds this. It catches a few tokens that diverge while the KL, a mean, stays small. Above 1;
    # 10 is a typical value. None: never stop.
    max_ratio=optional(Rule.number(1, open_low=True)),
    # (int) An optimizer step whose loss or gradient is NaN or infinite is skipped and reported. After this many
    # updates in a row with such a step the run stops and reports where the first such value appeared.
    max_bad_updates=Key(5, COUNT),
    # (int) Updates between two collects. Read by ``ding -m serial`` only.
    update_per_collect=Key(1, SIZE),
    # (dict) The optimizer: ``type``, a name of ``torch.optim`` (AdamW, Adam, Adafactor, Muon, NAdam, RAdam, RMSprop,
    # SGD) or 'module:Class', such as 'bitsandbytes.optim:AdamW8bit'; and further arguments of it, such as ``betas``.
    # Muon trains the matrices of hidden layers, and AdamW all other weights. ``offload=True`` with ``policy.cuda``: its
    # states lie in the memory of the host, where its steps are taken.
    optimizer=Key(dict(type='AdamW'), Rule("a dict with 'type'", lambda v: isinstance(v, dict) and 'type' in v)),
    # (float) Learning rate of the optimizer. Rates of the shipped configs, for AdamW: pretrained models 1e-6 (0.5 B
    # parameters) and 1e-5 to 2e-5 (0.1 B); LoRA 2e-5 (0.5 B); language models of up to some million parameters,
    # trained from scratch, 1e-4 to 5e-4; the networks of CartPole, Acrobot, Pendulum and LunarLander 3e-4 to 3e-3.
    learning_rate=Key(1e-5, Rule.number(0, 1000, open_low=True)),
    # (float) Weight decay of the optimizer.
    weight_decay=Key(0.0, Rule.number(0, 1000)),
    lr_scheduler=dict(
        # (str) A schedule of ``transformers.get_scheduler``. It counts updates, including those without an
        # optimizer step. A decay helps to keep a solved task solved.
        type=Key('constant', Rule.one_of(*SCHEDULES)),
        # (int) Updates W of the warm-up: the rate grows from 1 / W in the first to the full rate in the last.
        num_warmup_steps=Key(0, Rule.integer(0)),
        # (Optional[int]) Updates after which a decaying schedule ends, usually ``run.num_updates``. Not needed for
        # 'constant'.
        num_training_steps=optional(COUNT),
        # (dict) Further arguments of the schedule, such as ``min_lr_rate``.
        specific=dict(),
    ),
    # (float) Largest norm of the gradient. Lower it when the loss jumps.
    grad_clip_value=Key(1.0, POSITIVE),
    # (bool) Initialize the model as DI-engine's PPO does: orthogonal weights; for continuous actions a small actor and
    # standard deviations of 0.6, so that first actions are near 0. For models of single steps.
    ppo_param_init=False,
    # (str) How log-probabilities are computed. 'linear_log_prob': from hidden states, with the least memory. For
    # models whose output layer it does not support, from logits: 'efficient_method', or the plain 'naive_method'
    # and 'less_efficient_method'.
    log_prob_fn=Key('linear_log_prob', Rule.one_of(*LOG_PROB_FNS)),
    # (bool) Whether to resume the run in its folder from the newest checkpoint, or from the one that
    # ``learner.hook.load_ckpt_before_run`` names. The result is bit-identical to a run without interruption on a CPU,
    # and equal up to rounding on a GPU. DI-engine's own key, for every policy.
    resume_training=False,
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
)


def check(policy: Combination) -> None:
    check_optimizer(policy['learn'], bool(policy['cuda']), bool(policy['shard']))
    schedule = policy['learn.lr_scheduler']
    written = {key: dict(value) if isinstance(value, dict) else value for key, value in schedule.items()}
    with config_errors(f'policy.learn.lr_scheduler = {written!r}: transformers cannot make this schedule'):
        Schedule(schedule, policy['learn.learning_rate'])
