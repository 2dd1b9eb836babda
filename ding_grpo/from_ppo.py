"""
Write the config of ``grpo`` beside a config of DI-engine's on-policy PPO. Comments in the new file say what was decided
and why.

    python -m ding_grpo.from_ppo cartpole_ppo_config.py     # writes cartpole_grpo_config.py into the same folder
"""
import ast
import math
import os
import textwrap
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import click
from easydict import EasyDict

from ding_common import (
    ConfigError, ConfigFile, config_errors, describe, import_ding, is_not_installed, read_config_file
)

from .data.plain import plain

GROUP_SIZE = 8
EPISODES = 8  # of random actions, whose mean length turns steps into groups
GROUPS = (2, 16)  # fewest and most in a collect
HEADER = '''"""
GRPO on the environment of {name}, from which `python -m ding_grpo.from_ppo` made this file:

    python -m ding_grpo -m serial_onpolicy -c {out} -s 0
"""
from easydict import EasyDict
{imports}
{stem} = {main}
main_config = EasyDict({stem})

{stem_create} = {create}
create_config = EasyDict({stem_create})

if __name__ == '__main__':
    from ding_grpo.entry import run
    run(__file__)
'''


class Converted(NamedTuple):
    """A config of ``grpo``, with the comments on its keys by dotted path, and the keys of ``policy`` that were left out
    because grpo does not have them, with their values."""
    main: Dict
    create: Dict
    comments: Dict[str, str]
    unknown: List[str]


def check_is_ppo(main: Dict, create: Dict) -> None:
    """Raise ``ConfigError`` if a config is not one of DI-engine's on-policy PPO."""
    kind = create['policy']['type']
    if kind != 'ppo':
        raise ConfigError(
            f"create_config.policy.type = {kind!r}: only configs of DI-engine's on-policy PPO, 'ppo', can be converted."
        )
    policy = main['policy']
    if policy.get('multi_agent', False):
        raise ConfigError('policy.multi_agent = True: grpo trains one agent; the config cannot be converted.')
    space = policy.get('model', {}).get('action_space', policy.get('action_space', 'discrete'))
    if space not in ('discrete', 'continuous', 'hybrid'):
        raise ConfigError(
            f'policy.action_space = {space!r}: grpo has discrete, continuous or hybrid actions; the config cannot be '
            'converted.'
        )
    for section in ('reward_model', 'world_model'):
        if section in create or section in main:
            raise ConfigError(
                f'create_config.{section}: a config with a {section.replace("_", " ")} belongs to another pipeline, '
                'which grpo does not have; it cannot be converted.'
            )


def episode_length(main: Dict, create: Dict) -> Optional[float]:
    """Mean number of steps of an episode of random actions, in the environment of a config. None if the environment
    needs a package that is not installed."""
    from ding.config import compile_config
    from ding.envs import get_vec_env_setting
    try:
        cfg = compile_config(EasyDict(main), seed=0, auto=True, create_cfg=EasyDict(create), save_cfg=False)
        make, configs, _ = get_vec_env_setting(cfg.env)
        env = make(configs[0])
        env.seed(0, dynamic_seed=False)
        steps = 0
        for _ in range(EPISODES):
            env.reset()
            done = False
            while not done:
                done = env.step(env.random_action()).done
                steps += 1
        env.close()
    except Exception as error:  # of the environment, which may raise anything
        if is_not_installed(error):
            click.echo(
                f'create_config.env.type = {create["env"]["type"]!r}: a package is not installed ({describe(error)}), '
                f'so the length of episodes is unknown and policy.collect.groups the smallest, {GROUPS[0]} groups.'
            )
            return None
        raise ConfigError(
            f'create_config.env = {dict(create["env"])!r}: cannot be made, so steps cannot be turned into groups '
            f'({describe(error)})'
        ) from error
    return steps / EPISODES


def check_start(main: Dict, create: Dict, has_env: bool) -> None:
    """Build what a run of a converted config builds before its first episode; only the policy, if its environment
    cannot be made. Raises ``ConfigError`` if the run would fail."""
    from ding.envs import BaseEnv
    from ding.policy import create_policy

    from .check import built
    from .entry.build import compiled
    from .run.around import around_run
    main, create = EasyDict(plain(main)), EasyDict(plain(create))
    main.policy.update(cuda=False, multi_gpu=False)
    with config_errors('the converted config cannot be started'):
        if has_env:
            with built(main, create, seed=0):
                return
        with around_run():
            cfg = compiled((main, create), 0, env=BaseEnv, save_cfg=False)
            create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'], seed=0)


def convert(main: Dict, create: Dict, length: Optional[float]) -> Converted:
    from ding.policy import PPOPolicy
    from ding.utils import deep_merge_dicts

    from .config.check_keys import schema_of
    from .config.moved import move, remove
    from .config.ppo_keys import PPO_KEYS, written_ppo_keys
    from .policy import GRPOPolicy
    default = PPOPolicy.default_config()
    old, main, create = main['policy'], plain(main), plain(create)
    new = main['policy'] = {**dict(cuda=False, group_size=GROUP_SIZE), **main['policy']}
    learn, collect = new.setdefault('learn', {}), new.setdefault('collect', {})
    comments: Dict[str, str] = {}

    removed = [path for path, _ in written_ppo_keys(old)]
    for path in removed:
        remove(new, path)
    if removed:
        comments['policy'] = 'Keys of PPO that are gone: ' + '; '.join(
            f"{path}: {PPO_KEYS[path].replace('remove it; ', '').replace('remove it, or use', 'there is')}"
            for path in removed
        ) + '.'
    move(new, without=('collect.groups', 'learn.batch_groups'))  # sizes are converted below
    if not learn.get('lr_scheduler', True):
        learn.pop('lr_scheduler')
    collect.pop('unroll_len', None)
    known = GRPOPolicy.default_config()
    found = _unknown(new, schema_of(deep_merge_dicts(known, new), known))
    for path in found:
        remove(new, path)
    unknown = [f'{path} = {value!r}' for path, value in sorted(found.items())]
    if unknown:
        comments['policy'] = f"{comments.get('policy', '')} Keys that grpo does not have: {', '.join(unknown)}.".strip()
    new.get('model', {}).setdefault('action_space', old.get('action_space', default.action_space))

    main['exp_name'] = _renamed(main.get('exp_name', 'ppo'))
    _convert_sizes(main, old, default, length, comments)
    learn.setdefault('learning_rate', default.learn.learning_rate)
    learn.setdefault('grad_clip_value', default.learn.grad_clip_value)
    collect.setdefault('discount_factor', default.collect.discount_factor)
    learn.update(reduction='token', advantage='return_to_go_by_step')
    comments['policy.learn.advantage'] = (
        'Compares what follows each step with the same step of the other episodes of the group. PPO asks its critic.'
    )
    if old.get('learn', {}).get('ignore_done', False):
        learn['extend_truncated'] = True
        comments['policy.learn.extend_truncated'] = 'In place of ignore_done.'
    create['policy'] = dict(type='grpo', import_names=['ding_grpo'])
    create['collector'] = dict(type='group')
    return Converted(main, create, comments, unknown)


def _unknown(cfg: Dict, known: Dict) -> Dict[str, Any]:
    found = {key: value for key, value in cfg.items() if key not in known}
    for key in set(cfg) - set(found):
        if isinstance(cfg[key], dict) and isinstance(known[key], dict) and known[key]:
            found.update({f'{key}.{path}': value for path, value in _unknown(cfg[key], known[key]).items()})
    return found


def _convert_sizes(main: Dict, old: Dict, default: Dict, length: Optional[float], comments: Dict[str, str]) -> None:
    """Turn the sizes of PPO, which are steps, into groups, mini-batches of groups and updates."""
    new, learn = main['policy'], main['policy']['learn']
    steps = old.get('n_sample', old.get('collect', {}).get('n_sample', 0))
    batch = old.get('learn', {}).get('batch_size', default.learn.batch_size)
    epochs = old.get('learn', {}).get('epoch_per_collect', default.learn.epoch_per_collect)
    comments['policy.group_size'] = 'Episodes from the same start, which are compared with each other.'
    groups = min(max(math.ceil(steps / (GROUP_SIZE * (length or math.inf))), GROUPS[0]), GROUPS[1])
    new['collect']['groups'] = groups
    of_length = 'an unknown number of' if length is None else f'about {length:.0f}'
    comments['policy.collect.groups'] = (
        f'Groups. {groups} x {GROUP_SIZE} episodes of {of_length} steps, the length with random actions, in '
        f'place of {steps} steps; at least {GROUPS[0]}, at most {GROUPS[1]}.'
    )
    number = main['env']['collector_env_num']
    main['env']['collector_env_num'] = GROUP_SIZE * min(math.ceil(number / GROUP_SIZE), groups)
    if main['env']['collector_env_num'] != number:
        comments['env.collector_env_num'] = f'A multiple of group_size; it was {number}.'
    learn.update(batch_groups=1, epoch_per_collect=20, target_kl=0.015)
    comments['policy.learn.batch_groups'] = f'Groups in a mini-batch. It was {batch} steps.'
    comments['policy.learn.epoch_per_collect'] = (
        f'At most; target_kl ends them once the policy has moved that far from the one that sampled. It was {epochs}.'
    )
    evaluator = new.setdefault('eval', {}).setdefault('evaluator', {})
    freq = evaluator.get('eval_freq', 1000)  # DI-engine's default
    per_collect = epochs * max(1, steps // batch)
    evaluator['eval_freq'] = max(1, round(freq / per_collect))
    comments['policy.eval.evaluator.eval_freq'] = (
        f'Updates. It was {freq} mini-batches, of which a collect of PPO made {per_collect}.'
    )


def _renamed(name: str) -> str:
    return name.replace('ppo', 'grpo') if 'ppo' in name else f'{name}_grpo'


class Source:
    """The text of a config file, in which the expressions of objects such as ``nn.Tanh()`` are found."""

    def __init__(self, text: str) -> None:
        self._text, self._tree = text, ast.parse(text)
        self._expressions: Dict[Tuple[str, ...], ast.expr] = {}
        self._visit(self._tree, ())
        self._imports = {
            (alias.asname or alias.name).split('.')[0]: node
            for node in self._tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names
        }
        self._used: List[ast.stmt] = []

    def _visit(self, node: ast.AST, path: Tuple[str, ...]) -> None:
        pairs: List[Tuple[Optional[str], ast.expr]] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Dict):
            pairs = [(key.value, value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)]
        for key, value in pairs:
            self._expressions[(*path, str(key))] = value
            self._visit(value, (*path, str(key)))
        if not pairs:
            for child in ast.iter_child_nodes(node):
                self._visit(child, path)

    def expression(self, path: Tuple[str, ...], value: Any) -> str:
        """The expression that made a value. Raises ``ConfigError`` if it is not found, or uses names that the file does
        not import."""
        node = self._expressions.get(path)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node is not None else {''}
        if not names <= set(self._imports):
            raise ConfigError(
                f"main_config.{'.'.join(path)} = {value!r}: cannot be written to a file. Write it in the config as an "
                'expression of imported names, like nn.Tanh().'
            )
        self._used += [self._imports[name] for name in names if self._imports[name] not in self._used]
        return ast.get_source_segment(self._text, node)

    def used_imports(self) -> str:
        return ''.join(f'{ast.get_source_segment(self._text, node)}\n' for node in self._used)


def write(value: Any, source: Source, comments: Dict[str, str], path: Tuple[str, ...] = ()) -> str:
    """A value of a config as Python, with its comments by dotted path; ``path`` has the keys that lead to the value."""
    if isinstance(value, dict) and all(isinstance(key, str) and key.isidentifier() for key in value):
        if not value:
            return 'dict()'
        indent, lines = '    ' * (len(path) + 1), []
        for key, item in value.items():
            inside = (*path, key)
            comment = comments.get('.'.join(inside), '')
            lines += [f'{indent}# {line}' for line in textwrap.wrap(comment, 118 - len(indent))]
            lines.append(f'{indent}{key}={write(item, source, comments, inside)},')
        return '\n'.join(['dict(', *lines, f"{'    ' * len(path)})"])
    if isinstance(value, (list, tuple)):
        items = [write(item, source, {}, (*path, str(i))) for i, item in enumerate(value)]
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({''.join(f'{item}, ' for item in items)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if value is None or isinstance(value, (bool, int, float, str, dict)):
        return repr(value)
    return source.expression(path, value)


@click.command(help=__doc__)
@click.argument('file', type=ConfigFile())
@click.option('--out', help='The file to write. Default: beside FILE, with grpo in place of ppo in its name.')
@click.option('--overwrite', is_flag=True, help='Write over the file if it exists.')
def main(file: str, out: Optional[str], overwrite: bool) -> None:
    import_ding()
    import ding_grpo  # noqa: F401

    from .config.ppo_keys import written_ppo_keys
    main_config, create_config = read_config_file(file)
    if create_config.policy.type == 'grpo' and written_ppo_keys(main_config.policy):
        create_config.policy.type = 'ppo'  # of which the type alone has been changed
    check_is_ppo(main_config, create_config)
    if 'env_manager' not in create_config:
        create_config.env_manager = EasyDict(type='base')
    out = out or os.path.join(os.path.dirname(file), _renamed(os.path.basename(file).removesuffix('.py')) + '.py')
    if os.path.exists(out) and not overwrite:
        raise ConfigError(f'--out = {out!r}: exists; name another file, or use --overwrite.')
    length = episode_length(main_config, create_config)
    converted = convert(main_config, create_config, length)
    check_start(converted.main, converted.create, has_env=length is not None)
    with open(file, encoding='utf-8') as f:
        source = Source(f.read())
    stem = os.path.basename(out).removesuffix('.py').replace('-', '_')
    written = write(converted.main, source, converted.comments)
    text = HEADER.format(
        name=os.path.basename(file),
        out=os.path.basename(out),
        imports=source.used_imports(),
        stem=stem,
        main=written,
        stem_create=stem.replace('_config', '_create_config') if '_config' in stem else f'{stem}_create',
        create=write(converted.create, source, {})
    )
    with open(out, 'w', encoding='utf-8') as f:
        f.write(text)
    groups = converted.main['policy']['collect']['groups']
    left_out = f", without {', '.join(converted.unknown)}" if converted.unknown else ''
    click.echo(
        f'wrote {out}: {groups} groups x {GROUP_SIZE} episodes an update{left_out}. Its comments say what was decided. '
        f'Run: python -m ding_grpo -m serial_onpolicy -c {out} -s 0'
    )


if __name__ == '__main__':
    main()
