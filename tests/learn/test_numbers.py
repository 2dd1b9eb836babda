"""Numbers that are not finite: steps are skipped and counted, the run ends with their place; what ends epochs early."""
import copy
import math
import types

import gymnasium
import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from ding_common import ConfigError, NumericError, TaskError
from ding_grpo.data.diagnose import diagnose
from ding_grpo.learn.metrics import STEP_METRICS
from dizoo_llm.envs import TokenEnv
from tests.shipped import small

from tests.policies import make_batch, make_policy, sample_groups
from tests.learn.test_grpo import reward, vector
from tests.act.test_step_actor import CONTINUOUS, DISCRETE, make, sample_group

NAN, INF = float('nan'), float('inf')
ROW = 2  # of group 1: where a number is made wrong


def state(policy):
    """Weights and optimizer as they are now."""
    whole = policy.learn_mode.state_dict()
    return copy.deepcopy([whole['model'], whole['optimizer']['state']])


def equal(a, b):
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (dict, list, tuple)):
        keys = a if isinstance(a, dict) else range(len(a))
        return len(a) == len(b) and all(equal(a[key], b[key]) for key in keys)
    return a == b


# Each makes one number of group 1 wrong, for as long as the policy is used or in the data.


def wrong_reward(policy, data, value=NAN):
    data[1]['reward'][ROW, -1] = value


def infinite_reward(policy, data):
    wrong_reward(policy, data, INF)


def wrong_advantage(policy, data, value=NAN):
    of = policy._advantage.of

    def broken(batch):
        adv = of(batch)
        adv[4 + ROW] = value
        return adv

    policy._learning._advantage = types.SimpleNamespace(of=broken, method='grpo')


def large_advantage(policy, data):
    """The loss is out of range and its gradient is not, which is 0 where the ratio is clipped."""
    wrong_advantage(policy, data, 2e38)
    data[1]['logp_old'][ROW] -= 5 * data[1]['weight'][ROW]


def wrong_sampler(policy, data):
    data[1]['logp_old'][ROW, 1] = NAN


def wrong_reference(policy, data):
    with torch.no_grad():
        next(policy._learning.reference.copy.parameters()).fill_(NAN)


def wrong_policy(policy, data):
    read = policy._actor.read

    def broken(model, batch, *args, **kwargs):
        reading = read(model, batch, *args, **kwargs)
        if model is not policy._model:
            return reading
        row = (batch.logp_old == data[1]['logp_old'][ROW, 1]).any(1).nonzero().flatten()
        logp = reading.logp.clone()
        logp[row, 1] = logp[row, 1] * NAN
        return reading._replace(logp=logp)

    policy._actor.read = broken


def wrong_gradient(policy, data):
    policy._model.lm.model.norm.weight.register_hook(lambda g: torch.full_like(g, NAN))


def long_gradient(policy, data):
    for p in policy._model.parameters():
        p.register_hook(lambda g: torch.full_like(g, 1e30))  # the squares are out of range


def wrong_weight(policy, data):
    with torch.no_grad():
        policy._model.lm.model.layers[1].mlp.up_proj.weight[3, 5] = INF


WRONG = [
    wrong_reward, infinite_reward, wrong_advantage, large_advantage, wrong_sampler, wrong_reference, wrong_policy,
    wrong_gradient, long_gradient
]


def make_wrong(think_answer, wrong, **learn):
    """A policy with one good update behind it, and groups with a wrong number in the second."""
    main, create = think_answer
    main.policy.learn.update(learning_rate=1e-2, beta=0.1, lr_scheduler=dict(type='linear', num_training_steps=50))
    main.policy.learn.update(learn)
    policy = make_policy(main, create)
    policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
    data = sample_groups(policy, [0, 1], reward=reward)
    wrong(policy, data)
    return policy, data


@pytest.mark.unittest
class TestSkip:

    @pytest.mark.parametrize('wrong', WRONG)
    def test_weights_and_optimizer_stay_bit_for_bit(self, think_answer, wrong):
        policy, data = make_wrong(think_answer, wrong)
        before = state(policy)
        metrics = policy.learn_mode.forward(data)
        assert equal(state(policy), before)
        assert metrics['skipped_steps'] == 1 and metrics['optimizer_steps'] == 0
        assert 'total_loss' not in metrics  # there is no mean of nothing

    @pytest.mark.parametrize('options', [dict(micro_batch_tokens=30), dict(reduction='token'), dict(entropy_weight=0.)])
    def test_however_the_loss_is_summed(self, think_answer, options):
        policy, data = make_wrong(think_answer, wrong_reward, **options)
        before = state(policy)
        assert policy.learn_mode.forward(data)['skipped_steps'] == 1 and equal(state(policy), before)

    def test_a_good_update_follows(self, think_answer):
        policy, data = make_wrong(think_answer, wrong_reward)
        before = state(policy)
        policy.learn_mode.forward(data)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert metrics['skipped_steps'] == 0 and metrics['optimizer_steps'] == 1 and math.isfinite(metrics['grad_norm'])
        assert not equal(state(policy)[0], before[0])
        assert metrics['cur_lr'] == pytest.approx(1e-2 * 48 / 50)  # the schedule counts the skipped update too

    def test_other_mini_batches_of_the_update_are_learned(self, think_answer):
        options = dict(batch_size=1, epoch_per_collect=2)
        policy, data = make_wrong(think_answer, wrong_reward, **options)
        metrics = policy.learn_mode.forward(data)
        assert metrics['skipped_steps'] == metrics['optimizer_steps'] == 2
        assert all(math.isfinite(metrics[name]) for name in STEP_METRICS if name in metrics)
        alone, data = make_wrong(think_answer, wrong_reward, **options)
        alone.learn_mode.forward(data[:1])
        assert torch.equal(vector(policy._model.parameters()), vector(alone._model.parameters()))

    def test_is_monitored_and_0_else(self, think_answer):
        policy = make_policy(*think_answer)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert 'skipped_steps' in policy.learn_mode.monitor_vars() and metrics['skipped_steps'] == 0

    @pytest.mark.parametrize('learn', [dict(), dict(batch_steps=3), dict(advantage='return_to_go')], ids=str)
    def test_steps_of_other_environments(self, learn):
        policy = make(DISCRETE, learn=dict(learning_rate=1e-2, max_bad_updates=2, **learn))
        policy.learn_mode.forward([sample_group(policy, [3, 2])])
        before = state(policy)
        bad = sample_group(policy, [3, 2], reward=lambda row, step: NAN if row == step == 1 else 1., number=7)
        assert policy.learn_mode.forward([bad])['skipped_steps'] >= 1 and equal(state(policy), before)
        action = bad['action'][1, 1].item()
        with pytest.raises(NumericError,
                           match=f'a reward = nan\nin row 1, column 1, action {action} of group 7, sampled after'):
            policy.learn_mode.forward([bad])


@pytest.mark.unittest
class TestEnd:

    @pytest.mark.parametrize(
        'wrong, column, first', [
            (wrong_reward, -1, 'a reward = nan'),
            (infinite_reward, -1, 'a reward = inf'),
            (wrong_advantage, None, 'an advantage (adv) = nan'),
            (wrong_sampler, 1, 'a log-probability of the sampler (logp_old) = nan'),
            (wrong_reference, 0, 'a log-probability of the reference (logp_ref) = nan'),
            (wrong_policy, 1, 'a log-probability of the policy (logp_new) = nan'),
        ]
    )
    def test_names_tensor_group_and_token(self, think_answer, wrong, column, first):
        policy, data = make_wrong(think_answer, wrong, max_bad_updates=1)
        group, row = (0, 0) if wrong is wrong_reference else (1, ROW)
        where = f'in row {row} of group {group}, sampled after update 0'
        if column is not None:
            token, column = data[group]['action'][row, column].item(), range(data[group]['action'].shape[1])[column]
            where = f'in row {row}, column {column}, token {token} of group {group}, sampled after update 0'
        prompt = ' '.join(str(i) for i in data[group]['prompt'][:8].tolist())
        with pytest.raises(NumericError) as caught:
            policy.learn_mode.forward(data)
        lines = caught.value.message.split('\n')
        assert lines[0].startswith('policy.learn.max_bad_updates = 1: that many updates in a row skipped a step')
        assert lines[1].startswith('loss nan, norm of the gradient nan')
        assert lines[2] == f'the first NaN or infinite value: {first}'
        assert lines[3:] == [where, f'its prompt begins with the tokens {prompt} ...']

    def test_names_the_parameter(self, think_answer):
        policy, data = make_wrong(think_answer, wrong_weight, max_bad_updates=1)
        message = r'logp_new\) = nan\n(.|\n)*parameter lm.model.layers.1.mlp.up_proj.weight: 1 of 2048 numbers are NaN'
        with pytest.raises(NumericError, match=message):
            policy.learn_mode.forward(data)

    def test_names_the_gradient_by_its_parameter(self, think_answer):
        policy, data = make_wrong(think_answer, wrong_gradient, max_bad_updates=1)
        message = r'loss [-0-9.e]+, norm of the gradient nan\ngradient of lm.model.norm.weight: 32 of 32 numbers'
        with pytest.raises(NumericError, match=message):
            policy.learn_mode.forward(data)

    def test_says_so_where_only_a_sum_is_not(self, think_answer):
        policy, data = make_wrong(think_answer, long_gradient, max_bad_updates=1)
        with pytest.raises(NumericError, match='norm of the gradient inf\nthe batch, .* but a sum of them is'):
            policy.learn_mode.forward(data)

    def test_names_an_observation(self):
        policy = make(DISCRETE, learn=dict(max_bad_updates=1))
        sample = sample_group(policy, [3, 2])
        sample['obs'][4, 0] = INF  # the second step of the second row
        with pytest.raises(NumericError, match='infinite value: an observation\nin row 1, column 1, action'):
            policy.learn_mode.forward([sample])

    def test_observations_may_have_parts(self):
        weight = torch.tensor([[1., 1.], [1., 0.]])
        obs = dict(a=torch.zeros(3, 2), b=torch.tensor([0., 0., NAN]))
        batch = make_batch(weight, obs=obs, action=torch.tensor([[4, 5], [6, 0]]))
        batch.group_id, batch.collect_iter = torch.tensor([3, 3]), torch.tensor([9, 9])
        facts = diagnose(batch, torch.nn.Linear(1, 1), lambda: weight)
        assert facts[0] == 'the first NaN or infinite value: an observation'
        assert facts[1:] == ['in row 1, column 0, action 6 of group 3, sampled after update 9']

    def test_behind_a_rows_end_anything_may_stand(self, think_answer):
        policy, data = make_wrong(think_answer, wrong_gradient, max_bad_updates=1)
        for sample in data:
            sample['weight'][:, -1] = 0
            sample['logp_old'][:, -1] = NAN
        with pytest.raises(NumericError, match='gradient of lm.model.norm.weight'):
            policy.learn_mode.forward(data)

    def test_after_so_many_in_a_row_and_told_of_at_the_first(self, think_answer, capsys):
        policy, data = make_wrong(think_answer, wrong_reward, max_bad_updates=3)
        told = []
        for _ in range(2):
            policy.learn_mode.forward(data)
            told.append(capsys.readouterr().out)
        assert told[1] == ''
        first, *facts = told[0].splitlines()
        assert first == 'update 1 had a step that was skipped, for its loss or gradient is not finite'
        assert facts[1] == '  the first NaN or infinite value: a reward = nan' and 'of group 1' in facts[2]
        with pytest.raises(NumericError, match='max_bad_updates = 3: that many'):
            policy.learn_mode.forward(data)

    def test_a_good_update_begins_a_new_row(self, think_answer, capsys):
        policy, data = make_wrong(think_answer, wrong_reward, max_bad_updates=2)
        good = sample_groups(policy, [0, 1], reward=reward)
        for _ in range(3):
            policy.learn_mode.forward(data)
            policy.learn_mode.forward(good)
        assert capsys.readouterr().out.count('was skipped') == 3
        policy.learn_mode.forward(data)
        with pytest.raises(NumericError):
            policy.learn_mode.forward(data)

    def test_an_update_counts_once_however_many_steps_it_skips(self, think_answer, capsys):
        policy, data = make_wrong(think_answer, wrong_reward, max_bad_updates=2, batch_size=1, epoch_per_collect=3)
        assert policy.learn_mode.forward(data)['skipped_steps'] == 3
        assert capsys.readouterr().out.count('was skipped') == 1


@pytest.mark.unittest
class TestSampling:

    @pytest.mark.parametrize('options', [dict(), dict(top_k=5), dict(top_k=5, top_p=0.9)], ids=str)
    @pytest.mark.parametrize('value', [NAN, INF, -INF])
    def test_weights_that_are_not_finite(self, think_answer, options, value):
        main, create = think_answer
        main.policy.collect.update(options)
        policy = make_policy(main, create)
        with torch.no_grad():
            policy._model.lm.lm_head.weight[7] = value
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        parameter = 'parameter lm.lm_head.weight: 32 of 1024 numbers'
        with pytest.raises(NumericError, match=rf'^the logits at sampling .*\nin environment 5 \(row 3 of group 2, '
                           rf'sampled after update 4\), column 0\nits prompt begins with .*\n{parameter}'):
            policy.collect_mode.forward({5: obs}, row_keys={5: (4, 2, 3)})
        with pytest.raises(NumericError, match=rf'in environment 5 \(evaluation\), column 0\n.*\n{parameter}'):
            policy.eval_mode.forward({5: obs})

    @pytest.mark.parametrize('greedy', [False, True])
    def test_of_several_rows_the_one(self, think_answer, greedy):
        policy = make_policy(*think_answer)
        start, env = policy._model.start, TokenEnv(max_new_tokens=6)

        def broken(prompts, max_new_tokens):
            decoding = start(prompts, max_new_tokens)
            step = decoding.step

            def later(token):
                logit = step(token).clone()
                logit[1, 3] = NAN
                return logit

            decoding.step = later
            return decoding

        policy._model.__dict__['start'] = broken
        obs = {i: env.reset(options=dict(index=i))[0] for i in range(3)}
        keys = {i: (0, 0, i) for i in obs}
        with pytest.raises(NumericError, match=r'in environment 1 .*, column 1\n.*\nall parameters are finite'):
            policy.eval_mode.forward(obs) if greedy else policy.collect_mode.forward(obs, row_keys=keys)

    @pytest.mark.parametrize('model', [DISCRETE, CONTINUOUS], ids=['discrete', 'continuous'])
    @pytest.mark.parametrize('value', [NAN, INF])
    def test_an_observation_that_is_not_finite(self, model, value):
        policy = make(model)
        obs = {i: torch.full((3, ), value if i == 4 else 0.5) for i in (2, 4, 6)}
        message = r'in environment 4 \({}\)\nits observation is NaN or infinite\nall parameters are finite'
        with pytest.raises(NumericError, match=message.format('row 1 of group 0, sampled after update 8')):
            policy.collect_mode.forward(obs, row_keys={i: (8, 0, i // 2 - 1) for i in obs})
        with pytest.raises(NumericError, match=message.format('evaluation')):
            policy.eval_mode.forward(obs)

    def test_weights_of_an_actor(self):
        policy = make(DISCRETE)
        with torch.no_grad():
            next(policy._model.actor_head.parameters()).fill_(NAN)
        with pytest.raises(NumericError, match='logits at sampling.*\n.*\nparameter actor_head'):
            policy.collect_mode.forward({0: torch.zeros(3)}, row_keys={0: (0, 0, 0)})


@pytest.mark.unittest
class TestLoad:

    def test_a_pretrained_model(self, think_answer, tiny_model, tmp_path):
        with torch.no_grad():
            tiny_model.lm.model.embed_tokens.weight[3, 5] = NAN
        tiny_model.save_pretrained(str(tmp_path / 'base'))
        main, create = think_answer
        main.policy.model = dict(pretrained=str(tmp_path / 'base'))
        with pytest.raises(NumericError, match='^policy.model: .*\nparameter lm.model.embed_tokens.weight: 1 of 1024'):
            make_policy(main, create)

    def test_a_checkpoint(self, think_answer):
        policy = make_policy(*think_answer)
        whole = copy.deepcopy(policy.learn_mode.state_dict())
        whole['model']['lm.model.norm.weight'][0] = INF
        with pytest.raises(NumericError, match='^the checkpoint: .*\nparameter lm.model.norm.weight: 1 of 32 numbers'):
            policy.learn_mode.load_state_dict(whole)


@pytest.mark.unittest
class TestMaxRatio:

    @pytest.mark.parametrize('most', [None, 30])
    def test_ends_the_epochs_with_the_step_left_undone(self, think_answer, most):
        main, create = think_answer
        main.policy.learn.update(learning_rate=3e-3, micro_batch_tokens=most, epoch_per_collect=6)
        ratios = []
        for epochs in range(1, 7):  # the largest ratio of each epoch's mini-batch
            main.policy.learn.epoch_per_collect = epochs
            policy = make_policy(main, create)
            metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
            ratios.append((metrics['ratio_max'], vector(policy._model.parameters())))
        main.policy.learn.max_ratio = (
            ratios[2][0] + ratios[1][0]
        ) / 2  # between those before the second and third step
        policy = make_policy(main, create)
        metrics = policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert metrics['optimizer_steps'] == 2 and metrics['skipped_steps'] == 0
        assert metrics['ratio_max'] == ratios[2][0] > main.policy.learn.max_ratio
        assert torch.equal(vector(policy._model.parameters()), ratios[1][1])

    @pytest.mark.parametrize(
        'key, value, allowed', [('max_ratio', 1, r'in \(1, inf\)'), ('max_bad_updates', 0, 'an int')]
    )
    def test_what_is_allowed(self, think_answer, key, value, allowed):
        main, create = think_answer
        main.policy.learn[key] = value
        with pytest.raises(ConfigError, match=f'policy.learn.{key} = {value}: must be .*{allowed}'):
            make_policy(main, create)


class Broken(gymnasium.Env):
    """Gives one number that is not finite in the fourth step."""
    observation_space = gymnasium.spaces.Box(-1, 1, (4, ), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what):
        self._what = what

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self._steps += 1
        wrong = self._steps == 4
        obs = np.full(4, NAN if wrong and self._what == 'obs' else 0.5, np.float32)
        return obs, NAN if wrong and self._what == 'reward' else float(action), self._steps == 6, False, {}


@pytest.mark.unittest
@pytest.mark.parametrize(
    'what, error, message', [
        ('reward', TaskError, r'Broken-v0 gave the reward nan, must be a finite number \(float32\)'),
        (
            'obs', NumericError,
            r'the logits at sampling .*\nin environment 0 \(evaluation\)\nits observation is NaN or infinite'
        ),
    ]
)
def test_a_run_ends_and_says_what_the_environment_gave(tmp_path, monkeypatch, what, error, message):
    monkeypatch.chdir(tmp_path)
    if 'Broken-v0' not in gymnasium.registry:
        gymnasium.register('Broken-v0', Broken, disable_env_checker=True)
    main, create = small('cartpole_grpo')
    main.env.update(env_id='Broken-v0', env_kwargs=dict(what=what), evaluator_env_num=2, n_evaluator_episode=2)
    main.policy.learn.max_bad_updates = 2
    with pytest.raises(error, match=message):
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=9)
