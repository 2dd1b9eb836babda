"""What pipelines of DI-engine do with a config, a folder and logs."""
import errno
import os
import runpy

import ding.entry
import pytest
from ding.utils import ENV_REGISTRY, SERIAL_COLLECTOR_REGISTRY, build_logger
from ditk.logging.file import LoggingFileHandler
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.entry.build import compiled
from ding_grpo.run.around import around_run, save_config
from dizoo_llm.envs import DingTokenEnv

train = ding.entry.serial_pipeline_onpolicy


def evaluate(configs):
    ding.entry.eval(configs, state_dict={})


def refuses(pipeline, configs, message):
    with pytest.raises(ConfigError, match=message):
        pipeline(configs)
    assert not os.path.exists('run')


def test_registry_hands_on_errors_without_a_page_of_hints(capsys):

    def refuse(cfg):
        raise ConfigError('no')

    SERIAL_COLLECTOR_REGISTRY.register('refusing', refuse, force_overwrite=True)
    with around_run(), pytest.raises(ConfigError):
        SERIAL_COLLECTOR_REGISTRY.build('refusing', cfg={})
    assert capsys.readouterr().out == ''


def test_the_whole_config_of_a_run_can_be_imported(think_answer):
    whole = compiled(think_answer, 0, save_cfg=False)
    whole.policy.other = EasyDict(last=float('inf'))
    save_config(whole, 'whole.py')
    assert runpy.run_path('whole.py')['exp_config'] == whole


def test_without_a_name_of_the_run(think_answer):
    think_answer[0].pop('exp_name')
    train(think_answer, max_train_iter=1)
    assert os.path.exists('default_experiment/ckpt')


@pytest.mark.parametrize('pipeline', [train, ding.entry.serial_pipeline, evaluate])
def test_all_pipelines_check_first(think_answer, pipeline):
    main, create = think_answer
    refuses(pipeline, (dict(main, policy=0), create), 'policy = 0: must be a dict')
    refuses(pipeline, (main, dict(create, policy=dict(type='gpro'))), "create_config.policy.type = 'gpro': must be a r")


@pytest.mark.parametrize(
    'section, value, message', [
        ('policy.learn', None, 'policy.learn = None: must be a dict'),
        ('policy.learn.learner', 3, 'policy.learn.learner = 3: must be a dict'),
        ('policy.collect', [], r'policy.collect = \[\]: must be a dict'),
        ('policy.collect.collector', 'x', "policy.collect.collector = 'x': must be a dict"),
        ('policy.eval.evaluator', True, 'policy.eval.evaluator = True: must be a dict'),
        ('policy.other', 'x', "policy.other = 'x': must be a dict"),
        ('policy.import_names', ['none'], r"policy.import_names = \['none'\]: must be a list of modules"),
        ('env.import_names', ['needy'], r"env.import_names = \['needy'\]: .*No module named 'not_installed_here'"),
        ('exp_name', '/run', "exp_name = '/run': must be text, a path relative to the current folder"),
        ('exp_name', 5, 'exp_name = 5: must be text'),
        ('exp_name', '', "exp_name = '': must be text, a path relative to the current folder, and not that folder"),
        ('exp_name', './', "exp_name = './': must be text"),
        ('policy.type', 'grpo', "policy.type = 'grpo': belongs in create_config.policy"),
        ('policy', 0, 'policy = 0: must be a dict'),
        ('env', 0, 'env = 0: must be a dict'),
        ('env.type', 'token_en', "env.type = 'token_en': unknown environment; did you mean 'token_env'"),
        ('env.manager', 0, 'env.manager = 0: must be a dict'),
        ('policy', ..., 'main_config.policy: missing; must be a dict. Present: exp_name, env.'),
    ]
)
def test_what_is_no_section_is_refused_before_it_is_merged(think_answer, monkeypatch, section, value, message):
    """Each of these ended in a traceback of DI-engine's. ``...`` is a section that is not there."""
    main, create = think_answer
    with open('needy.py', 'w') as f:
        f.write('import not_installed_here')
    monkeypatch.syspath_prepend(os.getcwd())
    *path, key = section.split('.')
    cfg = main
    for name in path:
        cfg = cfg.setdefault(name, {})
    cfg[key] = value
    if value is ...:
        main.pop(key)  # of an EasyDict `del` would leave the attribute
    refuses(train, (main, create), message)


@pytest.mark.parametrize('name', ['file/run', 'file/below/run'])
def test_a_folder_below_a_file(think_answer, name):
    open('file', 'w').close()
    think_answer[0].exp_name = name
    refuses(train, think_answer, f"^exp_name = '{name}': .* could not be written .Not a directory")


@pytest.mark.parametrize('where', ['run', 'run/log/serial'])
def test_a_folder_that_may_not_be_written(think_answer, monkeypatch, where):
    makedirs = os.makedirs

    def refuse(path, *args, **kwargs):
        if os.path.normpath(path) == where:  # root may write everywhere
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        makedirs(path, *args, **kwargs)

    monkeypatch.setattr(os, 'makedirs', refuse)
    with pytest.raises(ConfigError, match=f"^exp_name = 'run': .*{where} could not be written .Permission denied"):
        train(think_answer, max_train_iter=1)


@ENV_REGISTRY.register('env_of_a_file')
class OfAFile(DingTokenEnv):

    def __init__(self, cfg):
        raise PermissionError(errno.EACCES, 'Permission denied', '/data/problems.txt')


def test_other_files_are_not_blamed_on_the_folder(think_answer):
    think_answer[1].env.type = 'env_of_a_file'
    with pytest.raises(PermissionError, match='/data/problems.txt'):
        train(think_answer, max_train_iter=1)


def test_text_logs_are_in_utf_8_whatever_the_locale_or_in_an_encoding_of_their_own(tmp_path):
    with around_run():
        logger, _ = build_logger(str(tmp_path), 'of_a_test', need_tb=False)
        assert [handler.encoding for handler in logger.handlers] == ['utf-8']
        for arguments, encoding in (((), 'utf-8'), (('w', 'latin-1'), 'latin-1'), (('w', ), 'utf-8')):
            handler = LoggingFileHandler(str(tmp_path / 'log'), *arguments)
            assert handler.encoding == encoding
            handler.close()
