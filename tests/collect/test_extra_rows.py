"""Groups that sample more rows than they learn from."""
import copy

import pytest
import torch
from easydict import EasyDict
from tests.collect.test_group_collector import AbnormalEnv, SlowResetEnv, make_collector, summary

from ding_common import ConfigError
from ding_grpo.config.cross_checks import check_for_steps, check_for_turns
from ding_grpo.config.keys import DEFAULTS
from dizoo_llm.envs import DingTokenEnv
from tests.policy.helper import make_policy

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
    main.policy.collect.extra_rows = EXTRA
    main.env.max_new_tokens = 12
    main.policy.collect.logit_bias = [('<eos>', 1.5)]
    return main, create


def collect(configs, tmp_path, manager='base', env_num=2 * (GROUP + EXTRA), n_sample=5, **options):
    collector = make_collector(*configs, tmp_path, manager, env_num, **options)
    samples = collector.collect(n_sample=n_sample, train_iter=3)
    collector.close()
    return collector, samples


@pytest.mark.envtest
class TestCollect:

    def test_rows_are_the_shortest_of_a_larger_group(self, configs, tmp_path):
        _, found = collect(configs, tmp_path)
        larger = copy.deepcopy(configs)
        larger[0].policy.group_size, larger[0].policy.collect.extra_rows = GROUP + EXTRA, 0
        _, whole = collect(larger, tmp_path)
        dropped = 0
        for some, rows in zip(found, whole):
            length = rows['length'].tolist()
            kept = sorted(sorted(range(GROUP + EXTRA), key=lambda row: (length[row], row))[:GROUP])
            dropped += kept != list(range(GROUP))
            most = max(length[row] for row in kept)
            assert some['length'].tolist() == [length[row] for row in kept]
            assert some['action'].tolist() == rows['action'][kept][:, :most].tolist()
            assert some['reward'].tolist() == rows['reward'][kept][:, :most].tolist()
            assert torch.allclose(some['logp_old'], rows['logp_old'][kept][:, :most], atol=1e-5)
        assert dropped > 2  # other rows than the first ones

    def test_result_depends_neither_on_environments_nor_on_processes(self, configs, tmp_path):
        found = [
            summary(collect(configs, tmp_path, *way, env_cls=env_cls)[1]) for way, env_cls in
            ((('base', 6), DingTokenEnv), (('base', 18), DingTokenEnv), (('subprocess', 12), SlowResetEnv))
        ]
        assert found[0] == found[1] == found[2]

    def test_dropped_rows_are_not_scored_and_their_tokens_are_counted(self, configs, tmp_path, monkeypatch):
        monkeypatch.setattr(CountedEnv, 'steps', 0)
        policy, sampled = make_policy(*configs), []
        collector = make_collector(*configs, tmp_path, env_num=12, env_cls=CountedEnv, policy=policy)
        forward = collector._policy.forward

        def noted(*args, **kwargs):
            outputs = forward(*args, **kwargs)
            sampled.extend(len(output['action']) for output in outputs.values())
            return outputs

        collector._player._policy = collector._policy._replace(forward=noted)
        samples = collector.collect(n_sample=4)
        assert CountedEnv.steps == 4 * GROUP and len(sampled) == 4 * (GROUP + EXTRA)
        tokens = sum(int(s['weight'].sum()) for s in samples)
        assert collector.envstep == tokens
        metrics = policy.learn_mode.forward(samples)
        assert metrics['dropped_tokens'] == sum(sampled) - tokens > 0

    def test_a_group_that_begins_anew_drops_rows_as_before(self, configs, tmp_path, monkeypatch):
        expected = summary(collect(configs, tmp_path)[1])
        monkeypatch.setattr(AbnormalEnv, 'broken', 3)
        collector, samples = collect(configs, tmp_path, env_cls=AbnormalEnv)
        assert summary(samples)[1:] == expected[1:] and AbnormalEnv.broken == 0
        assert len(samples[0]['action']) == len(samples[1]['action']) and summary(samples)[0] != expected[0]

    def test_groups_are_replaced_by_their_rows_that_count(self, configs, tmp_path):
        """Two options that look at different things: rows are dropped by length first, groups by rewards then."""
        collector, samples = collect(configs, tmp_path, max_replacements=4, reward_range=(0.05, 9.))
        replaced = round(sum(s['replaced_groups'] for s in samples))
        assert replaced > 0 and collector.state_dict()['groups'] == 5 + replaced
        everything = {s[0]: s for s in summary(collect(configs, tmp_path, n_sample=5 + replaced)[1])}
        assert summary(samples) == [everything[s['group_id']] for s in samples]
        means = {number: torch.tensor(reward).sum(1).mean() for number, _, _, reward in everything.values()}
        learned = [s['group_id'] for s in samples if not s['filtered'] and not s['equal']]
        assert learned == [number for number in sorted(means) if means[number] >= 0.05][:len(learned)]

    def test_with_a_greedy_baseline(self, configs, tmp_path):
        plain = summary(collect(configs, tmp_path)[1])
        configs[0].policy.learn.adv_method = 'remax'
        _, samples = collect(configs, tmp_path)
        assert summary(samples) == plain and all('baseline' in s for s in samples)


@pytest.mark.unittest
class TestConfig:

    def test_number_of_environments(self, configs, tmp_path):
        with pytest.raises(ConfigError, match=r'env.collector_env_num = 8: must be a multiple of policy.group_size \+ '
                           r'policy.collect.extra_rows = 6'):
            make_collector(*configs, tmp_path, env_num=8)

    @pytest.mark.parametrize('value', [-1, 1.5, True, None])
    def test_values(self, configs, value):
        configs[0].policy.collect.extra_rows = value
        with pytest.raises(ConfigError, match='policy.collect.extra_rows = .*: must be an integer of at least 0'):
            make_policy(*configs)

    def test_not_with_several_turns(self, configs):
        policy = make_policy(*configs)
        with pytest.raises(ConfigError, match='policy.collect.extra_rows = 2: not available with env.max_turns = 3'):
            check_for_turns(policy._cfg, 3)

    def test_not_for_other_models(self):
        cfg = EasyDict(copy.deepcopy(DEFAULTS))
        cfg.collect.extra_rows = 1
        with pytest.raises(ConfigError, match='policy.collect.extra_rows = 1: only available for language models'):
            check_for_steps(cfg)

    def test_without_them_nothing_is_dropped(self, think_answer, tmp_path):
        """The metric appears with the option only, and no output of the policy names it."""
        policy = make_policy(*think_answer)
        collector = make_collector(*think_answer, tmp_path, policy=policy)
        samples = collector.collect(n_sample=2)
        assert 'dropped_tokens' not in policy.learn_mode.forward(samples)
        output = policy.collect_mode.forward({0: samples[0]['prompt']}, row_keys={0: (0, 0, 0)})
        assert 'dropped' not in output[0]
