"""Groups that sample more rows than they learn from."""
import pytest
import torch

from ding_common import ConfigError
from dizoo_llm.envs import DingTokenEnv
from tests.collect.helper import AbnormalEnv, SlowResetEnv, summary
from tests.policies import make_policy

pytestmark = pytest.mark.envtest
GROUP, EXTRA = 4, 2


class CountedEnv(DingTokenEnv):
    """Counts the completions that are scored."""
    steps = 0

    def step(self, action):
        CountedEnv.steps += 1
        return super().step(action)


@pytest.fixture
def configs(think_answer):
    """Rows of different lengths: a token ends its row with a probability of about 1/8."""
    main, create = think_answer
    main.policy.collect.update(extra_rows=EXTRA, processors=[dict(type='logit_bias', bias=[('<eos>', 1.5)])])
    main.env.max_new_tokens = 12
    return main, create


@pytest.fixture
def collect(configs, collector):
    """Groups of one collect: (manager, number of environments, ...)."""

    def groups(manager='base', env_num=2 * (GROUP + EXTRA), n_sample=5, **options):
        return collector(manager, env_num, **options).collect(n_sample=n_sample, train_iter=3)

    return groups


def test_rows_are_the_shortest_of_a_larger_group_which_alone_are_scored(configs, collector, collect):
    CountedEnv.steps = 0
    policy = make_policy(*configs)
    of_counted = collector(env_num=12, env_cls=CountedEnv, policy=policy)
    found = of_counted.collect(n_sample=5, train_iter=3)
    assert CountedEnv.steps == 5 * GROUP
    configs[0].policy.group_size, configs[0].policy.collect.extra_rows = GROUP + EXTRA, 0
    whole, dropped, longest = collect(), 0, 0
    for some, rows in zip(found, whole):
        length = rows['length'].tolist()
        kept = sorted(sorted(range(GROUP + EXTRA), key=lambda row: (length[row], row))[:GROUP])
        dropped += kept != list(range(GROUP))
        most = max(length[row] for row in kept)
        longest += most
        assert some['length'].tolist() == [length[row] for row in kept]
        assert some['action'].tolist() == rows['action'][kept][:, :most].tolist()
        assert some['reward'].tolist() == rows['reward'][kept][:, :most].tolist()
        assert torch.allclose(some['logp_old'], rows['logp_old'][kept][:, :most], atol=1e-5)
    assert dropped > 2  # other rows than the first ones
    assert of_counted.envstep == sum(int(s['weight'].sum()) for s in found)
    # the others are sampled until the last row that is kept has ended
    assert policy.learn_mode.forward(found)['dropped_tokens'] == EXTRA * longest


def test_result_depends_neither_on_environments_nor_on_processes(collect):
    found = summary(collect('base', 6))
    assert found == summary(collect('base', 18)) == summary(collect('subprocess', env_cls=SlowResetEnv))


def test_a_group_that_begins_anew_drops_rows_as_before(collect):
    expected = summary(collect())
    AbnormalEnv.broken = 3
    samples = collect(env_cls=AbnormalEnv)
    assert summary(samples)[1:] == expected[1:] and AbnormalEnv.broken == 0
    assert len(samples[0]['action']) == len(samples[1]['action']) and summary(samples)[0] != expected[0]


def test_groups_are_replaced_by_their_rows_that_count(collect):
    """Two options that look at different things: rows are dropped by length first, groups by rewards then."""
    samples = collect(max_replacements=4, reward_range=(0.05, 9.))
    replaced = round(sum(s['replaced_groups'] for s in samples))
    assert replaced > 0
    everything = {s[0]: s for s in summary(collect(n_sample=5 + replaced))}
    assert summary(samples) == [everything[s['group_id']] for s in samples]
    means = {number: torch.tensor(reward).sum(1).mean() for number, _, _, reward in everything.values()}
    learned = [s['group_id'] for s in samples if not s['filtered'] and not s['equal']]
    assert learned == [number for number in sorted(means) if means[number] >= 0.05][:len(learned)]


def test_with_a_greedy_baseline(configs, collect):
    plain = summary(collect())
    configs[0].policy.learn.adv_method = 'remax'
    samples = collect()
    assert summary(samples) == plain and all('baseline' in s for s in samples)


def test_number_of_environments(configs, collector):
    with pytest.raises(ConfigError, match=r'env.collector_env_num = 8: must be a multiple of policy.group_size \+ '
                       r'policy.collect.extra_rows = 6'):
        collector(env_num=8)
