"""The keys directly under ``policy``: its processes, its group size, its models; and the replay buffer."""
from ding_common import Rule, parallel

from ..key import SIZE, Combination, Key, optional
from ..models import model_type

POLICY = dict(
    # (str) Registered name of the policy.
    type='grpo',
    # (bool) Whether to use a GPU. An error on a machine without one.
    cuda=False,
    # (bool) Whether the processes that ``torchrun`` started share one run, on GPUs or not (docs/guides/scaling.md).
    # Groups, mini-batches and results are the same as with one process.
    multi_gpu=False,
    # (Union[bool, str]) Whether each process keeps only its part of the weights, the gradients and the optimizer's
    # state (FSDP2, docs/guides/scaling.md), for a model that does not fit on one GPU. True: the model is divided among
    # all processes. 'machine': among those of each machine. Needs ``multi_gpu``. For language models.
    shard=Key(False, Rule.one_of(True, False, 'machine')),
    # (bool) Whether the data comes from the policy that is trained. Read by DI-engine's collectors.
    on_policy=True,
    # (bool) Priorities of a replay buffer, which are not supported. Read by DI-engine's pipelines.
    priority=Key(False, Rule('False: groups have no priorities', lambda v: v is False)),
    # (int) Trajectories from one start, at least 2; 1 is allowed with ``learn.advantage='gae'`` or 'none' and with
    # ``learn.adv_method='reinforce_plus_plus'``, 'batch_mean' or 'remax'. Raise it when most groups have equal
    # rewards.
    group_size=Key(8, SIZE),
    # (dict) Arguments of the registered model. ``causal_lm`` needs either ``pretrained`` or ``config``.
    model=dict(),
    # (Optional[dict]) A language model that the policy learns from on its own rows, arguments as of ``model``, with
    # ``pretrained``. Another vocabulary is compared by the strings of tokens (docs/tutorials/more_than_one_number.md).
    # With ``self`` or ``preset``: the policy teaches itself, with a solution or feedback in its prompt. None: no
    # teacher.
    teacher=optional(Rule('a dict', lambda v: isinstance(v, dict))),
    other=dict(replay_buffer=dict()),
)

# Keys that must keep their defaults with ``shard``. Each would read the model, or another one, in a way that is not
# divided among processes.
_UNDIVIDED = (
    'teacher', 'learn.log_prob_fn', 'learn.demonstrations.share', 'instruments.shadow', 'instruments.noise_every'
)


def check(policy: Combination) -> None:
    _check_buffer(policy)
    if policy['shard']:
        _check_shard(policy)
    if policy['cuda']:
        parallel.check_gpu()


def _check_buffer(policy: Combination) -> None:
    cfg, groups = policy.cfg, policy['learn.batch_groups']
    buffer = cfg.get('other', {}).get('replay_buffer', {})
    bounded = min(buffer.get(key, float('inf')) for key in ('max_use', 'max_staleness')) < float('inf')
    if bounded and groups > buffer['replay_buffer_size']:
        raise policy.refusal(
            'learn.batch_groups', 'must be at most policy.other.replay_buffer.replay_buffer_size = '
            f"{buffer['replay_buffer_size']}, because the buffer never contains more groups."
        )
    if cfg.get('random_collect_size', 0) > 0 and not cfg.get('transition_with_policy_data', False):
        raise policy.refusal(
            'random_collect_size', 'needs policy.transition_with_policy_data = True, because a random policy makes no '
            'groups.'
        )


def _check_shard(policy: Combination) -> None:
    """Check that a run whose model is divided uses only what can be divided."""
    kind = model_type(policy['model'])
    if not policy['multi_gpu']:
        raise policy.refusal('shard', 'needs policy.multi_gpu = True, since processes share the model.')
    if kind != 'causal_lm':
        raise policy.refusal('shard', f"needs policy.model.type = 'causal_lm', not {kind!r}.")
    if policy['model'].get('quantize') is not None:
        raise policy.refusal('shard', 'not available with policy.model.quantize. Remove one of them.')
    undivided = [key for key in _UNDIVIDED if policy[key] != policy.default(key)]
    for key in [*undivided, *(['learn.advantage'] if policy['learn.advantage'] == 'gae' else [])]:
        raise policy.refusal(
            key, f"not available with policy.shard = {policy['shard']!r}. Set it to {policy.default(key)!r}, or shard "
            'to False.'
        )
