"""The config that a run writes into its folder, as data."""
from functools import partial

from ding_common.config.total_config import as_literals, read_total_config
from ding_grpo.run.around import save_config


def scorer(completion):
    return 1.0


def test_functions_are_names_and_other_objects_texts(tmp_path):
    given = dict(reward=[scorer, lambda x: x], kind=int, other=partial(scorer, 1), size=(1, 2.0, None, float('inf')))
    found = as_literals(given)
    assert found['reward'][0] == f'{__name__}:scorer' and '<lambda>' in found['reward'][1]
    assert found['kind'] == 'builtins:int' and found['other'].startswith('functools.partial'
                                                                         ) and found['size'] == given['size']
    config = dict(env=dict(task=given), policy={})
    save_config(config, str(tmp_path / 'total_config.py'))
    assert read_total_config(str(tmp_path)) == as_literals(config)
