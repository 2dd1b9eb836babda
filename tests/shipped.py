"""The configs in config/ as tests need them: unchanged, made small, or written to a config file."""
import copy
import glob
import json
import os
import runpy
from typing import Any, Dict, List, Tuple

from ding.utils import deep_merge_dicts
from easydict import EasyDict

CONFIG = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', 'config'))
CHAT = (
    '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
    '{% if add_generation_prompt %}<assistant>{% endif %}'
)
FILE = '''
from easydict import EasyDict
main_config = EasyDict({main!r})
create_config = EasyDict({create!r})
{code}
'''


def names(pattern: str = '*') -> List[str]:
    """Of the files that match, without ``_config.py``."""
    return sorted(os.path.basename(path)[:-len('_config.py')] for path in glob.glob(f'{CONFIG}/{pattern}_config.py'))


def path_of(name: str) -> str:
    return os.path.join(CONFIG, f'{name}_config.py')


def load(name: str, **changes: Any) -> Tuple[EasyDict, EasyDict]:
    """(main_config, create_config); ``changes`` are merged into main_config."""
    loaded = runpy.run_path(path_of(name))
    return EasyDict(deep_merge_dicts(loaded['main_config'], changes)), copy.deepcopy(loaded['create_config'])


def small(name: str, folder: str = '.', **changes: Any) -> Tuple[EasyDict, EasyDict]:
    """``load``, with sizes of which an update takes part of a second, and no end before the last update. ``folder`` is
    the one of ``write_model_and_data``, which configs with real text read."""
    main, create = load(name)
    main.exp_name, main.policy.cuda = 'run', False
    main.env.update(evaluator_env_num=4, n_evaluator_episode=4, stop_value=1e9)
    if 'group_size' in main.policy:
        main.policy.group_size, main.env.collector_env_num, main.policy.collect.groups = 4, 8, 2
    if 'env_id' in main.env:
        main.env.env_kwargs = dict(max_episode_steps=15)
    else:
        main.policy.learn['batch_size' if create.policy.type.startswith('ppo') else 'batch_groups'] = 2
        _shrink_language_model(main, folder)
    return EasyDict(deep_merge_dicts(main, changes)), create


def _shrink_language_model(main: EasyDict, folder: str) -> None:
    if 'config' in main.policy.model:
        main.policy.model.config.update(hidden_size=32, intermediate_size=64)
        return
    main.env.tokenizer.pretrained = main.policy.model.pretrained = os.path.join(folder, 'base')
    main.env.update(max_new_tokens=8, max_prompt_length=496)
    if 'max_turns' in main.env:
        main.env.update(max_reply_tokens=8, max_prompt_length=900)
    if 'overlong_buffer' in main.env:
        main.env.overlong_buffer = 4
    for key in ('path', 'eval_path'):
        if key in main.env.task:
            main.env.task[key] = os.path.join(folder, main.env.task[key])
    for key, size in (('eval_size', 8), ('size', 100)):
        if key in main.env.task:
            main.env.task[key] = size


def write(path: Any, configs: Tuple[EasyDict, EasyDict], code: str = '') -> str:
    """Write a config file; ``code`` are lines at its end, which may change ``main_config`` and ``create_config``."""
    main, create = configs
    with open(path, 'w') as f:
        f.write(FILE.format(main=main, create=create, code=code))
    return str(path)


def write_model_and_data(model_config: Dict[str, Any], folder: str = '.') -> None:
    """Write what configs with real text read: ``base``, a random model with a tokenizer of characters and a chat
    template, and ``gsm8k``, small files like GSM8K's."""
    from ding_grpo.model import CausalLM
    from dizoo_llm.text.tokenizer import build_char_tokenizer
    tokenizer = build_char_tokenizer(''.join(map(chr, range(32, 127))) + '\n')
    tokenizer.chat_template = CHAT
    model = CausalLM(config=dict(model_config, vocab_size=len(tokenizer), max_position_embeddings=1024))
    model.save_pretrained(os.path.join(folder, 'base'), tokenizer)
    os.makedirs(os.path.join(folder, 'gsm8k'))
    for name, first in (('train', 0), ('test', 100)):
        numbers = range(first, first + 30)
        rows = [dict(question=f'What is {n} + 1?', answer=f'It is {n + 1}.\n#### {n + 1}') for n in numbers]
        with open(os.path.join(folder, 'gsm8k', f'{name}.jsonl'), 'w') as f:
            f.write('\n'.join(map(json.dumps, rows)))
