"""Keys that an engine cannot follow: a run that samples from another distribution than it learns from."""
import copy

import pytest
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.engine.options import EngineOptions, check_sampling

URL = 'http://127.0.0.1:8000'


def policy(**collect):
    cfg = EasyDict(copy.deepcopy(DEFAULTS))
    cfg.collect.update(collect)
    return cfg


@pytest.mark.parametrize(
    'engine, words', [
        (dict(), 'must have either url'),
        (dict(url=URL, launch=dict(python='python')), 'must have either url'),
        (dict(url='127.0.0.1:8000'), "policy.collect.engine.url = '127.0.0.1:8000': must be an address"),
        (dict(url=[]), 'must be an address'),
        (dict(url=[URL, URL]), 'must be an address'),
        (dict(url=URL, second=3), "engine.second = 3: unknown key; did you mean 'seconds'?"),
        (dict(url=URL, seconds=0), 'engine.seconds = 0: must be'),
        (dict(url=URL, patience=-1), 'engine.patience = -1: must be'),
        (dict(url=URL, folder=''), "engine.folder = '': must be the path of a folder"),
        (dict(launch=dict(args=[])), 'engine.launch.python: missing'),
        (dict(launch=dict(python='python', args='--x')), "engine.launch.args = '--x': must be a list"),
        (dict(launch=dict(python='python', argument=[])), 'engine.launch.argument'),
        (dict(launch=dict(python='python', env=dict(A=1))), "engine.launch.env = {'A': 1}: must be a dict of texts"),
    ]
)
def test_wrong_key(engine, words):
    with pytest.raises(ConfigError) as error:
        EngineOptions.of(dict(engine, type='vllm'))
    assert words in error.value.message


def test_url_without_its_last_slash():
    assert EngineOptions.of(dict(type='vllm', url=f'{URL}/')).url == (URL, )


@pytest.mark.parametrize(
    'keys, words', [
        (dict(autocast='bfloat16'), "give the server's --dtype instead"),
        (dict(top_p=0.9), 'policy.collect.top_p = 0.9: not available'),
        (dict(processors=[dict(type='min_p', p=0.1)]), 'Set policy.collect.top_k too'),
        (dict(processors=[dict(type='typical_p', p=0.1)], top_k=5), ': typical_p: not available'),
        (dict(processors=[dict(type='m:f')], top_k=5), ': allowed_tokens: not available'),
        (dict(processors=[dict(type='min_p', p=0.1)], top_k=5, top_p=0.9), 'min_p with top_p: not available'),
    ]
)
def test_sampling_that_is_not_exact(keys, words):
    with pytest.raises(ConfigError) as error:
        check_sampling(policy(**keys))
    assert words in error.value.message


@pytest.mark.parametrize(
    'keys', [dict(), dict(top_k=5, top_p=0.9),
             dict(top_k=5, processors=[dict(type='min_p', p=.1)])]
)
def test_sampling_that_is_exact(keys):
    check_sampling(policy(**keys))


def test_several_processes():
    for key, value in dict(launch=dict(python='p'), record=True).items():
        with pytest.raises(ConfigError, match=f'engine.{key} = .* not available with policy.multi_gpu = True'):
            check_sampling(EasyDict(policy(engine={'type': 'vllm', key: value}), multi_gpu=True))
    check_sampling(EasyDict(policy(engine=dict(type='vllm', url=URL)), multi_gpu=True))
