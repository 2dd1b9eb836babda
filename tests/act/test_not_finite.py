"""Logits and observations that are not finite at sampling: the run ends and names the environment."""
import pytest
import torch

from ding_common import NumericError
from dizoo_llm.envs import TokenEnv
from tests.policies import CONTINUOUS, DISCRETE, step_policy, token_policy

NAN, INF = float('nan'), float('inf')


@pytest.mark.parametrize('options, value', [(dict(), -INF), (dict(top_k=5), NAN), (dict(top_p=0.9), INF)], ids=str)
def test_weights_of_a_language_model(options, value):
    policy = token_policy(collect=options)
    with torch.no_grad():
        policy.model.lm.lm_head.weight[7] = value
    obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
    parameter = 'parameter lm.lm_head.weight: 32 of 1024 numbers'
    with pytest.raises(NumericError, match=rf'^the logits at sampling .*\nin environment 5 \(row 3 of group 2, '
                       rf'sampled after update 4\), column 0\nits prompt begins with .*\n{parameter}'):
        policy.collect_mode.forward({5: obs}, row_keys={5: (4, 2, 3)})
    with pytest.raises(NumericError, match=rf'in environment 5 \(evaluation\), column 0\n.*\n{parameter}'):
        policy.eval_mode.forward({5: obs})


@pytest.mark.parametrize('greedy', [False, True])
def test_of_several_rows_the_one(greedy):
    policy = token_policy()
    start, env = policy.model.start, TokenEnv(max_new_tokens=6)

    def broken(prompts, max_new_tokens):
        decoding = start(prompts, max_new_tokens)
        step = decoding.step

        def later(token):
            logit = step(token).clone()
            logit[1, 3] = NAN
            return logit

        decoding.step = later
        return decoding

    policy.model.start = broken
    obs = {i: env.reset(options=dict(index=i))[0] for i in range(3)}
    keys = {i: (0, 0, i) for i in obs}
    with pytest.raises(NumericError, match=r'in environment 1 .*, column 1\n.*\nall parameters are finite'):
        policy.eval_mode.forward(obs) if greedy else policy.collect_mode.forward(obs, row_keys=keys)


@pytest.mark.parametrize('model, value', [(DISCRETE, INF), (CONTINUOUS, NAN)], ids=['discrete', 'continuous'])
def test_an_observation(model, value):
    policy = step_policy(model)
    obs = {i: torch.full((3, ), value if i == 4 else 0.5) for i in (2, 4, 6)}
    message = r'in environment 4 \({}\)\nits observation is NaN or infinite\nall parameters are finite'
    with pytest.raises(NumericError, match=message.format('row 1 of group 0, sampled after update 8')):
        policy.collect_mode.forward(obs, row_keys={i: (8, 0, i // 2 - 1) for i in obs})
    with pytest.raises(NumericError, match=message.format('evaluation')):
        policy.eval_mode.forward(obs)


def test_weights_of_a_model_of_steps():
    policy = step_policy(DISCRETE)
    with torch.no_grad():
        next(policy.model.actor_head.parameters()).fill_(NAN)
    with pytest.raises(NumericError, match='logits at sampling.*\n.*\nparameter actor_head'):
        policy.collect_mode.forward({0: torch.zeros(3)}, row_keys={0: (0, 0, 0)})
