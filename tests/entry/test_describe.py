"""What a key of a config means, on the command line."""
import pytest
from click.testing import CliRunner

from ding_grpo.__main__ import command


def told(*arguments):
    result = CliRunner().invoke(command(), list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    'key, lines',
    [
        ('policy.learn.kl.beta', ['policy.learn.kl.beta (float), default 0.0', '  Allowed: a number in [0, inf).']),
        ('policy.learn.kl', ['policy.learn.kl', '  beta = 0.0']),
        ('policy.learn', ['  loss = \'grpo\'', '  lr_scheduler, off_policy, preference.']),
        ('policy.collect.collector.max_failed', ['  exceeded. A failed completion is dropped from its group.']),
        ('env.max_turns', ['env.max_turns (token_env) (int), default 1']),
        ('env', ['env (token_env)', 'env (gymnasium_env)']),
    ]
)  # yapf: disable
def test_type_default_meaning_and_what_is_allowed(key, lines):
    code, text = told('--help', key)
    assert code == 0 and all(line in text.splitlines() for line in lines), text


@pytest.mark.parametrize(
    'key, message', [
        ('policy.learn.kl.bata', "did you mean 'beta'? Allowed: beta, horizon, "),
        ('policy.lern', "did you mean 'learn'? Allowed: "),
        ('learn.kl', "did you mean 'policy.learn.kl'? Allowed: env, policy, "),
    ]
)
def test_an_unknown_key_ends_in_one_line(key, message):
    code, text = told('--help', key)
    assert code == 1 and text.startswith(f'Error: --help {key}: there is no such key; {message}'), text


@pytest.mark.parametrize('option', ['-h', '--help'])
def test_without_a_key_the_options(option):
    code, text = told(option)
    assert code == 0 and text.startswith('Usage: ') and '[KEY=VALUE]...' in text and '--load-path' in text
