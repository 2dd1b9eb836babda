"""Surrogates and their options, from a config; surrogates that a user writes."""
import os
import re

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.rl_utils import SURROGATES
from tests.policies import sample_groups, token_policy, weights
from tests.runs import train

PAGE = os.path.join(os.path.dirname(__file__), '..', '..', 'docs', 'reference', 'losses.md')
LOSSES = open(PAGE, encoding='utf-8').read()
SPO = re.search(r'```python\n(.*?)```', LOSSES, re.DOTALL)[1]
WRONG = '''
number = 3

def fewer(ratio, adv, logp_new):
    return ratio * adv

def fails(ratio, adv, logp_new, low, high):
    return ratio * adv / ratio.nothing

def mean(ratio, adv, logp_new, low, high):
    return (ratio * adv).mean()

def detached(ratio, adv, logp_new, low, high):
    return (ratio * adv).detach()

def nothing(ratio, adv, logp_new, low, high):
    pass
'''


@pytest.fixture
def losses(tmp_path, monkeypatch):
    """A folder of modules that Python can import, each imported once."""
    number = len(os.listdir(tmp_path.parent))
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        name = f'my_losses_{number}_{len(os.listdir(tmp_path))}'
        (tmp_path / f'{name}.py').write_text(text)
        return name

    return write


def by_row(group, row):
    return float(row)


def trained(**learn):
    """The weights after an update of two epochs."""
    policy = token_policy(epoch_per_collect=2, learning_rate=1e-2, **learn, clip=dict(ratio=0.2))
    policy.learn_mode.forward(sample_groups(policy, reward=by_row))
    return weights(policy)


class TestSurrogate:

    def test_of_a_module_trains_as_it_is_written(self, losses):
        module = losses(f'{SPO}\nclip = lambda r, adv, logp, low, high: (r * adv).min(r.clamp(low, high) * adv)\n')
        by_name = trained(surrogate='clip')
        assert torch.equal(trained(surrogate=f'{module}:clip'), by_name)
        spo = trained(surrogate=f'{module}:spo')
        assert spo.isfinite().all() and not torch.allclose(spo, by_name, atol=1e-4)

    @pytest.mark.parametrize('section', ['policy', 'env', 'create'])
    def test_that_an_imported_module_registers(self, think_answer, losses, monkeypatch, section):
        main, create = think_answer
        monkeypatch.setitem(SURROGATES, 'of_a_test', None)  # removed afterwards
        del SURROGATES['of_a_test']
        importing = create.policy if section == 'create' else main[section]
        text = f"{SPO}\nfrom ding_grpo.rl_utils import SURROGATES\nSURROGATES['of_a_test'] = spo\n"
        importing.import_names = [*importing.get('import_names', []), losses(text)]
        main.policy.learn.surrogate = 'of_a_test'
        assert train((main, create), 1)._learning.updates == 1

    @pytest.mark.parametrize(
        'name, message', [
            ('nowhere:spo', "there is no module 'nowhere' that can be imported"),
            (':spo', "there is no module '' that can be imported"),
            ('{module}:sop', "the module has no 'sop'; .*Allowed: detached, fails, fewer, mean, nothing"),
            ('{module}:', "the module has no ''"),
            ('{module}:number', 'must be a function, not int'),
            ('{module}:fewer', r'must take the arguments \(ratio, adv, .*\) \(too many positional arguments\)'),
            ('{module}:fails', r'fails on small tensors \(AttributeError: .* \(my_losses.*.py:8\)\)'),
            ('{module}:mean', r'floats of shape \(B, S\) with a gradient. .* returns torch.float32 \(\).'),
            ('{module}:detached', r'with a gradient. .* returns torch.float32 \(2, 3\) without a gradient.'),
            ('{module}:nothing', 'it returns NoneType.'),
            ('{broken}:spo', r'the module cannot be imported \(ZeroDivisionError: .*.py:1\)\)'),
        ]
    )
    def test_wrong_ones_end_in_one_line(self, think_answer, losses, name, message):
        name = name.format(module=losses(WRONG), broken=losses('1 / 0'))
        think_answer[0].policy.learn.surrogate = name
        with pytest.raises(ConfigError, match=message) as caught:
            train(think_answer, 1)
        assert caught.value.message.startswith(f'policy.learn.surrogate = {name!r}: ')
        assert '\n' not in caught.value.message and not os.path.exists('run')

    def test_options_of_a_users_function(self, losses):
        module = losses(
            'def power(ratio, adv, logp_new, low, high, *, weight, logp_old, exponent=1.0):\n'
            '    return ratio ** exponent * adv * (weight != 0)\n'
        )
        strong = trained(surrogate=f'{module}:power', surrogate_options=dict(exponent=3.0))
        assert not torch.allclose(trained(surrogate=f'{module}:power'), strong, atol=1e-4)
        with pytest.raises(ConfigError, match="'exponnt' is not an option of .*; its options are exponent"):
            trained(surrogate=f'{module}:power', surrogate_options=dict(exponnt=3.0))

    def test_delta_goes_with_clip_alone(self, losses):
        with pytest.raises(ConfigError, match="delta = 3.0: must be None for surrogate 'spo'; only 'clip'"):
            token_policy(surrogate=f'{losses(SPO)}:spo', clip=dict(delta=3.))
