import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from ding_common import ConfigError
from ding_grpo.model import CausalLMVAC
from tests.model.helper import tokens_read
from tests.shipped import small


@pytest.fixture
def model(tiny_config):
    torch.manual_seed(0)
    return CausalLMVAC(config=tiny_config)


def observation(*rows, size=8):
    return torch.tensor([list(row) + [-1] * (size - len(row)) for row in rows])


@pytest.mark.parametrize(
    'rows', [
        [[3, 1, 4], [3, 1], [3, 1, 4, 1, 5], [3, 1, 5], [3, 1, 4], [3, 0, 0, 0], [9, 2], [6]],
        [[2, 7, 1, 8, 2, 8, 1, 8]] * 3,
    ],
    ids=str
)
def test_equals_reading_each_row_alone(model, rows):
    out = model(observation(*rows), mode='compute_actor_critic')
    assert torch.equal(out['value'], torch.zeros(len(rows)))  # at the beginning
    of_floats = model(observation(*rows).float(), mode='compute_actor')  # as DI-engine casts them
    assert torch.equal(out['logit'], of_floats['logit'])
    torch.nn.init.normal_(model.critic.weight)
    value = model(observation(*rows), mode='compute_critic')['value']
    for i, row in enumerate(rows):
        alone = model.actor.lm(torch.tensor([row]), output_hidden_states=True)
        assert torch.allclose(out['logit'][i], alone.logits[0, -1], atol=1e-5)
        assert torch.allclose(value[i], model.critic(alone.hidden_states[-1][0, -1])[0], atol=1e-5)
    for result in (out['logit'], value):  # value and policy train one trunk
        trained = model.actor.lm.get_input_embeddings().weight
        assert torch.autograd.grad(result.square().sum(), trained)[0].any()


def test_what_rows_have_in_common_is_read_once(model):
    read, prompt = tokens_read(model.actor), [9, 8, 7, 6, 5]
    model(observation([3, 1, 4, 1], [3, 1, 4], [3, 1, 5], [3, 1], [3, 1, 4]), mode='compute_actor')
    assert read == [2 + 2 * 2]  # a beginning of two tokens, and two rows of two more
    model(observation(*(prompt + [i, i] for i in range(6))), mode='compute_actor')  # all rows of one length
    model(observation(*([p] + prompt + [i, i] for i in range(6) for p in (1, 2))), mode='compute_actor')
    assert read[1:] == [5 + 6 * 2, 2 * 6 + 12 * 2]


def test_an_unknown_mode(model):
    with pytest.raises(ValueError, match="mode = 'actor'"):
        model(observation([3]), mode='actor')


@pytest.mark.parametrize(
    'learn, model, message', [
        (dict(ppo_param_init=True), {}, 'policy.learn.ppo_param_init = True: would reinitialise every layer'),
        ({}, dict(dtype='float16'), "policy.model.dtype = 'float16'"),
    ]
)
def test_what_would_wipe_or_destroy_the_weights_is_refused(own_folder, learn, model, message):
    configs = small('think_answer_ppo', exp_name='run', policy=dict(learn=learn, model=model))
    with pytest.raises(ConfigError, match=message):
        serial_pipeline_onpolicy(configs, seed=0, max_train_iter=1)
