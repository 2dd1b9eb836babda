"""Words of other libraries, and keys as keyword arguments."""
import re

import pytest
from click.testing import CliRunner

from ding_common import ConfigError, shipped_config
from ding_grpo.bonus.keywords import set_keywords
from ding_grpo.config.check_keys import schema_of
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.config.moved import written
from ding_grpo.words import LIBRARIES, answer, main
from dizoo_llm.envs.options import ENV_OPTIONS


@pytest.mark.parametrize('library', LIBRARIES)
def test_every_word_has_a_key_that_exists(library):
    known = {*dict(written(schema_of(DEFAULTS, DEFAULTS), 'policy.')), *dict(written(ENV_OPTIONS, 'env.'))}
    known |= {f'policy.model.{key}' for key in ('lora', 'autocast', 'gradient_checkpointing')}
    known.add('policy.learn.learner.hook.report.ext_args')
    known.add('policy.learn.learner.hook.save_ckpt_after_iter')
    for word, told in LIBRARIES[library].items():
        for path in re.findall(r'\b(?:policy|env)\.[\w.]+', told):
            assert path in known, (word, path)
        assert answer(word) == f'a word of {library}; here: {told}.'
    shown = CliRunner().invoke(main, [library]).output
    assert all(word in shown for word in LIBRARIES[library])


def test_a_word_without_its_first_parts():
    assert answer('kl_loss_coef') == 'a word of verl; here: policy.learn.kl.beta.' and answer('nothing') is None


def test_names_paths_and_sections():
    main_config, create_config = shipped_config('guess_grpo')
    keys = dict(temperature=0.8, learn=dict(kl=dict(beta=0.1), loss='dapo'), clip=dict(ratio=0.3))
    keys.update(model=dict(pretrained='x'), max_turns=3, stop_value=0.5, exp_name='y')
    keys.update({'learn.entropy.weight': 0.2, 'policy.collect.top_k': 5, 'env.stop': ['x']})
    rate = main_config.policy.learn.learning_rate
    set_keywords(main_config, create_config, keys)
    learn = main_config.policy.learn
    assert (learn.kl.beta, learn.loss, learn.clip.ratio, learn.entropy.weight) == (0.1, 'dapo', 0.3, 0.2)
    assert learn.learning_rate == rate and main_config.policy.model == dict(pretrained='x')  # replaced as a whole
    assert (main_config.policy.collect.temperature, main_config.policy.collect.top_k) == (0.8, 5)
    assert (main_config.env.max_turns, main_config.env.stop_value, main_config.env.stop) == (3, 0.5, ['x'])
    assert main_config.exp_name == 'y'


@pytest.mark.parametrize(
    'name, message', [
        ('weight', r'several keys have this name: policy.learn.entropy.weight, policy.learn.distillation.weight, '),
        ('temperture', "did you mean 'temperature'?"),
        ('max_completion_length', 'a word of trl; here: env.max_new_tokens.'),
    ]
)
def test_a_name_that_is_none_or_several(name, message):
    with pytest.raises(ConfigError, match=message):
        set_keywords(*shipped_config('guess_grpo'), {name: 1})
