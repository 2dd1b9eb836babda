"""The line of digests of an update."""
from types import SimpleNamespace

import pytest

from ding_common import read_json_lines
from ding_grpo.instruments.hashes import digests
from tests.policies import reward, sample_groups, token_policy


def test_each_part_of_a_large_weight_has_its_turn():
    """The weights do not change, so that what differs is the part; small ones are hashed as a whole."""
    large = dict(hidden_size=256, intermediate_size=300, num_hidden_layers=1, num_attention_heads=1)
    policy = token_policy(dict(group_size=2, model=dict(config=dict(model_type='llama', **large))), learning_rate=1e-30)
    lines = []
    for update in range(9):
        policy.learn_mode.forward(sample_groups(policy, collect=update))
        lines.append([x[0] for x in policy.observers['digests'].record['weights']])
    sizes = [p.numel() for p in policy.model.parameters()]
    turns = [len({line[i] for line in lines}) for i in range(len(sizes))]
    assert turns == [8 if size > 2 ** 16 else 1 for size in sizes] and 8 in turns and 1 in turns
    assert lines[8] == lines[0]


def test_a_learner_of_ones_own_writes_lines_too(own_folder):
    """One that no pipeline begins has no first line."""
    policy = token_policy(dict(group_size=2))
    hook, = policy.observers['digests'].hooks()
    for update in range(2):
        policy.learn_mode.forward(sample_groups(policy, collect=update))
        hook(SimpleNamespace(exp_name='run', instance_name='learner', last_iter=SimpleNamespace(val=update)))
    found = read_json_lines('run/log/learner/digests.jsonl')
    assert [line['update'] for line in found] == [0, 1] and all(line['gradients'] for line in found)


def test_gradients_are_those_before_they_are_clipped_and_an_update_without_a_step_has_none():
    policy = token_policy(dict(group_size=4), learning_rate=1e-30, grad_clip_value=1e-3)
    groups = sample_groups(policy, indices=(0, ), reward=reward)
    metrics = policy.learn_mode.forward(groups)
    assert metrics['grad_norm'] > 0.01 and metrics['optimizer_steps'] == 1
    recorded = policy.observers['digests'].record['gradients']
    clipped = digests([p.grad for p in policy.model.parameters()])
    assert len(recorded) == len(clipped)
    for (before, _, size), (after, _, left) in zip(recorded, clipped):
        assert before != after and size == pytest.approx(left * metrics['grad_norm'] / 1e-3, rel=1e-3)
    groups[0]['reward'] = groups[0]['reward'] * float('inf')
    metrics = policy.learn_mode.forward(groups)
    assert metrics['skipped_steps'] == 1 and policy.observers['digests'].record['gradients'] == []
