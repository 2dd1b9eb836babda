"""``policy.collect``: groups, the order of problems, and the sampling distribution."""
from math import prod
from typing import Any

from ding.utils import SERIAL_COLLECTOR_REGISTRY

from ding_common import MOST, ConfigError, Rule

from ..key import COUNT, POSITIVE, SHARE, SIZE, Combination, Key, optional

_PROCESSORS = Rule.list_of(
    'dicts with the key type, a text', lambda entry: isinstance(entry, dict) and isinstance(entry.get('type'), str)
)
_SIZES = Rule.list_of('integers of at least 1', SIZE.holds)


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and (value in PLACES or value.count(':') == 1)


PLACES = ('tokens', 'turns', 'entropy', 'sentences')
_BRANCHES = Rule.list_of('integers of at least 2', Rule.integer(2, MOST).holds)
_TOKENS = Rule(f'{_SIZES.allowed}, ascending', lambda v: _SIZES.holds(v) and list(v) == sorted(set(v)))
_ENGINE = Rule(
    "a dict with type='vllm' or type='recorded'", lambda v: isinstance(v, dict) and v.get('type') in
    ('vllm', 'recorded')
)

COLLECT = dict(
    # (int) Groups in one collect.
    groups=Key(8, SIZE),
    # (int) Number of rows that a group samples in addition to ``group_size``. As many of its rows, the longest, are
    # dropped unscored, and sampling stops when all others have ended. Faster where few rows are much longer than
    # most, and biased towards short rows (docs/guides/options.md). ``env.collector_env_num`` must be a multiple of
    # ``group_size`` + ``extra_rows``. For language models. 0: none.
    extra_rows=Key(0, Rule.integer(0, MOST)),
    # A group as a tree: rows share their first tokens, which are sampled and read once, and divide at places
    # (docs/tutorials/more_than_one_number.md). With ``learn.advantage`` 'tree', which values each part; or 'gae' or
    # 'none'. For language models.
    tree=dict(
        # (List[int]) Into how many branches a row divides at one place after another, as in [2, 2]. ``group_size`` is a
        # multiple of their product, of at least two rows that share only their prompt. []: no tree.
        branches=Key([], _BRANCHES),
        # (str) Where a row divides: after so many 'tokens'; where its 'turns' begin; where the 'entropy' of the next
        # token is large; after 'sentences'; or where a function of its text so far says so, 'module:function'.
        at=Key('tokens', Rule('tokens, turns, entropy, sentences, or module:function', _is_place)),
        # (List[int]) With 'tokens': number of a row's tokens before each place, as in [16, 48].
        tokens=Key([], _TOKENS),
        # (float) With 'entropy': least entropy of the next token, in nats.
        above=Key(1.0, Rule.number(0)),
        # (int) Least number of tokens between two places, and before the first. With 'entropy', 'sentences' and a
        # function.
        apart=Key(8, COUNT),
    ),
    # (int) Largest number of episodes that each collector environment runs in a collect, which is ``groups`` x
    # (``group_size`` + ``extra_rows``) / ``env.collector_env_num``. A larger number is an error, because it is
    # mostly a number of steps by mistake. Raise it if it is meant.
    max_episodes_per_env=Key(16, COUNT),
    # (str) Which problem each group of a token environment gets. 'epoch': in shuffled epochs, every problem once
    # before any of them twice. 'random': each drawn from all problems, with replacement. 'pools': in shuffled
    # epochs, in which easy and hard problems come less often (curriculum).
    problem_order=Key('epoch', Rule.one_of('epoch', 'random', 'pools')),
    # For ``problem_order='pools'``.
    pools=dict(
        # (float) Smallest return of a success. The success rate of a problem is the share of its completions.
        success_from=Key(1.0, Rule.number()),
        # (float) Weight of a problem's newest group in its success rate, in (0, 1]. 1: only that group counts.
        newest=Key(0.5, SHARE),
        # (float) Problems with at least this success rate are easy.
        easy_from=Key(0.9, Rule.number(0, 1)),
        # (float) Problems with at most this success rate are hard. Below ``easy_from``.
        hard_to=Key(0.1, Rule.number(0, 1)),
        # (float) Probability that an easy problem comes in an epoch, in (0, 1]. It must come now and then, because
        # its success rate may have fallen.
        easy_share=Key(0.25, SHARE),
        # (float) Probability that a hard problem comes in an epoch, in (0, 1].
        hard_share=Key(0.5, SHARE),
    ),
    # (float) Logits are divided by it. 1 samples from the model's own distribution.
    temperature=Key(1.0, POSITIVE),
    # (Optional[int]) Sample from this many most probable tokens only. Their ids are stored with each token.
    top_k=optional(COUNT),
    # (Optional[float]) Sample from the fewest tokens whose probabilities sum to it, in (0, 1]. Without ``top_k``
    # they can be most of the vocabulary, and a sampled token stores up to V / 8 bytes.
    top_p=optional(SHARE),
    # (List[dict]) What else changes the sampling distribution, as in ``[dict(type='min_p', p=0.05)]``; learning takes
    # it into account exactly. 'min_p' and 'typical_p' with ``p``, 'repetition_penalty' with ``penalty``, 'logit_bias'
    # with ``bias``, and a grammar, 'module:function' (docs/guides/options.md). For language models.
    processors=Key([], _PROCESSORS),
    # (Optional[str]) 'bfloat16': sample in bfloat16, and learn and evaluate in the model's own arithmetic. Sampling
    # reads weights of half the size. Ratios are relative to the learner's own log-probabilities; ``sampler_gap_mean``
    # shows how far the sampler's are from them (docs/reference/metrics.md). For language models.
    autocast=optional(Rule.one_of('bfloat16')),
    # (float) Discount of rewards, by step; with several turns (``env.max_turns``), by turn. 1 for completions of a
    # language model.
    discount_factor=Key(1.0, Rule.number(0, 1)),
    # (bool) Whether the trajectories of a group start in the same state. False gives each its own start, for
    # environments whose starts hardly differ. Completions of a group always have the same prompt.
    shared_start=True,
    # (Optional[dict]) Samples instead of the model, as ``dict(type='vllm', url='http://127.0.0.1:8000')``, see
    # docs/guides/vllm.md, or ``dict(type='recorded', run=FOLDER)``: rows that such a run recorded. For language models.
    # None: the model samples.
    engine=optional(_ENGINE),
    # (int) Groups are sampled in another process while this one learns, with weights that are at most this many
    # updates old (docs/guides/scaling.md). More than 1 needs ``engine``. For ``-m serial_onpolicy`` on CPUs, in a run
    # of one process. 0: sampling and learning take turns.
    max_staleness=Key(0, Rule.integer(0, MOST)),
    # (bool) Whether a row that is sampled ahead goes on with newer weights as soon as there are some, in place of those
    # that it began with. Raise it where few long rows keep all others waiting. Needs ``engine`` and ``max_staleness``.
    in_flight=False,
    # (int) Read by DI-engine's collectors. A group is always whole, whatever its length.
    unroll_len=Key(1, COUNT),
    collector=dict(),
)


def check(policy: Combination) -> None:
    collector = policy['collect'].get('collector', {}).get('type', 'group')
    made = SERIAL_COLLECTOR_REGISTRY.get(collector) if collector in SERIAL_COLLECTOR_REGISTRY else None
    if not getattr(made, 'makes_groups', False):
        raise ConfigError(
            f'create_config.collector.type = {collector!r}: grpo learns from whole groups, which only the group '
            "collector and its subclasses make. Use collector=dict(type='group') in create_config."
        )
    order, pools = policy['collect.problem_order'], policy['collect.pools']
    policy.only_with(
        (f'collect.pools.{key}' for key in COLLECT['pools']), order == 'pools',
        f"policy.collect.problem_order = 'pools', not {order!r}"
    )
    if pools['hard_to'] >= pools['easy_from']:
        raise policy.refusal('collect.pools.hard_to', f"must be below easy_from = {pools['easy_from']}.")
    check_tree(policy)
    if policy['collect.max_staleness'] > 1 and policy['collect.engine'] is None:
        raise policy.refusal('collect.max_staleness', 'more than 1 needs policy.collect.engine. Set it to 1.')
    in_flight = policy['collect.engine'] is not None and policy['collect.max_staleness'] > 0
    policy.only_with(['collect.in_flight'], in_flight, 'policy.collect.engine and policy.collect.max_staleness > 0')
    for key in ('cuda', 'multi_gpu'):
        if policy['collect.max_staleness'] > 0 and policy[key]:
            raise policy.refusal('collect.max_staleness', f'not available with policy.{key} = True. Set it to 0.')


def check_tree(policy: Combination) -> None:
    tree, rows = policy['collect.tree'], policy['group_size'] + policy['collect.extra_rows']
    at, size, advantage = tree['at'], prod(tree['branches']), policy['learn.advantage']
    policy.only_with(
        (f'collect.tree.{key}' for key in COLLECT['tree'] if key != 'branches'), size > 1,
        'policy.collect.tree.branches'
    )
    policy.only_with(['collect.tree.above'], at == 'entropy', "policy.collect.tree.at = 'entropy'")
    policy.only_with(['collect.tree.apart'], at not in ('tokens', 'turns'), 'other places than tokens and turns')
    if size == 1:
        if advantage == 'tree':
            raise policy.refusal('learn.advantage', 'needs policy.collect.tree.branches, as in [2, 2].')
        return
    if rows % size or rows < 2 * size:
        raise policy.refusal(
            'collect.tree.branches',
            f'needs policy.group_size + policy.collect.extra_rows = {rows} to be a multiple of '
            f'their product, {size}, and at least {2 * size}.'
        )
    if advantage not in ('tree', 'gae', 'none'):
        raise policy.refusal(
            'learn.advantage',
            "with policy.collect.tree must be 'tree', 'gae' or 'none'. Rows of a tree share tokens, so "
            'a comparison with all rows of the group is biased.'
        )
    if len(tree['tokens']) != (len(tree['branches']) if at == 'tokens' else 0):
        raise policy.refusal(
            'collect.tree.tokens',
            f"must have as many numbers as branches ({len(tree['branches'])}) with at = 'tokens', "
            'and none otherwise.'
        )
    if policy['collect.engine'] is not None:
        raise policy.refusal('collect.tree.branches', 'not available with policy.collect.engine. Set it to [].')
