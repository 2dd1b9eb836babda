"""Versions of the packages beneath this one."""
from importlib.metadata import PackageNotFoundError, version

import pytest
from ding.entry import serial_pipeline_onpolicy

from ding_common import versions


@pytest.fixture
def required(monkeypatch):
    """Says what ding-grpo requires; nothing at all where it is on the path alone."""

    def require(*lines):

        def requires(name):
            if not lines:
                raise PackageNotFoundError(name)
            return list(lines)

        monkeypatch.setattr(versions, 'requires', requires)

    return require


def test_a_version_beyond_its_bounds_is_named(required):
    required('transformers>=1,<2', 'DI-engine<99', 'torch<1')
    line, = versions.untested()
    assert line.startswith(f"transformers {version('transformers')}: ding-grpo was tested with <2, >=1 only.")
    assert line.endswith("pip install 'transformers<2,>=1'")


@pytest.mark.parametrize('lines', [['no_such_package<2; extra == "lora"'], []])
def test_neither_an_extra_that_is_not_installed_nor_a_package_on_the_path_alone(required, lines):
    required(*lines)
    assert versions.untested(('no_such_package', )) == []


@pytest.mark.envtest
def test_a_run_says_so_once_and_goes_on(think_answer, required, capsys):
    required('transformers<2')
    serial_pipeline_onpolicy(think_answer, seed=0, max_train_iter=1)
    assert capsys.readouterr().out.count(': ding-grpo was tested with <2 only.') == 1
