"""
How large a group must be for a given success rate, what a run of such groups costs, and keys to start with: as a config
of this project, and as the arguments of TRL and verl.
"""
import json
import math
import os
import pprint
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from ding_grpo.footprint import footprint
from ding_grpo.model import CausalLM

from .examination import Part

SIZES = (4, 8, 16, 32, 64)
SHARE = 0.8  # of groups with unequal rewards, from which alone GRPO learns
UNEQUAL = 8  # groups with unequal rewards that an update should have on average
LENGTH = 256  # tokens of a completion, where nothing says how many
MICRO = 8192  # tokens that learning reads at a time on a GPU, see ``policy.learn.micro_batch_tokens``
RATE = 1e-6  # learning rate with which runs of pretrained models usually start
ENDS = ('_trl.json', '_verl.txt', '_config.py')  # of the files beside a page
_CONFIG = '''"""A start, for a success rate of {success:g}; `python -m ding_grpo.preflight` made this file."""
from easydict import EasyDict

main_config = EasyDict({main})
create_config = EasyDict({create})
'''


class Plan(NamedTuple):
    """Rows of a group, groups of an update, and the expected share of groups with unequal rewards."""
    group_size: int
    groups: int
    share: float


def plan_for(success: float) -> Plan:
    """The smallest group of ``SIZES`` of which ``SHARE`` have unequal rewards, if each completion is right with the
    same probability p: 1 - p^G - (1 - p)^G. The largest one if none has."""
    for size in SIZES:
        share = 1 - success ** size - (1 - success) ** size
        if share >= SHARE:
            break
    return Plan(size, math.ceil(UNEQUAL / share), share)


def of_plan(success: float, model: Optional[str], max_new_tokens: int) -> Part:
    """The plan in lines, with the memory of a model that is a folder."""
    plan = plan_for(success)
    rows = plan.group_size * plan.groups
    lines = [
        f'with a success rate of {success:g}: {plan.groups} groups of {plan.group_size} rows, of which '
        f'{100 * plan.share:.0f} % have unequal rewards if all problems have this rate, else fewer',
        f'an update samples {rows:,} rows, at most {rows * max_new_tokens:,} tokens',
    ]
    if model is not None and os.path.isfile(os.path.join(model, 'config.json')):
        found = footprint(_without_weights(model), MICRO, rows, max_new_tokens)
        lines += [] if found is None else [f'memory by formula, with {MICRO:,} tokens at a time: {found}']
    if plan.share >= SHARE:
        return Part('plan', lines, [])
    message = f'with a success rate of {success:g}, {100 * plan.share:.0f} % of groups of {plan.group_size} have ' \
              'unequal rewards. Start from a model that is right more often, or less often; a warm start, worked ' \
              'examples in the prompt, or other problems'
    return Part('plan', lines, [dict(cause='equal', message=message, share=plan.share)])


def _without_weights(folder: str) -> CausalLM:
    with open(os.path.join(folder, 'config.json'), encoding='utf-8') as f:
        config = json.load(f)
    with torch.device('meta'):
        return CausalLM(config=config)


def trl_arguments(plan: Plan, max_new_tokens: int, weights: List[float]) -> Dict[str, Any]:
    """Names and values for ``GRPOConfig``: an optimizer step for each batch of completions."""
    return dict(
        num_generations=plan.group_size,
        per_device_train_batch_size=plan.group_size,
        gradient_accumulation_steps=plan.groups,
        max_completion_length=max_new_tokens,
        learning_rate=RATE,
        temperature=1.0,
        **(dict(reward_weights=weights) if len(weights) > 1 else {}),
    )


def verl_arguments(plan: Plan, env: Dict[str, Any], model: Optional[str], max_new_tokens: int) -> List[str]:
    """Arguments of verl's command line."""
    task, rollout, actor = env['task'], 'actor_rollout_ref.rollout', 'actor_rollout_ref.actor'
    given = {
        'algorithm.adv_estimator': 'grpo',
        'data.train_batch_size': plan.groups,
        'data.max_response_length': max_new_tokens,
        f'{rollout}.n': plan.group_size,
        f'{rollout}.temperature': 1.0,
        f'{actor}.ppo_mini_batch_size': plan.groups,
        f'{actor}.optim.lr': RATE,
    }
    if model is not None:
        given['actor_rollout_ref.model.path'] = model
    if isinstance(task.get('path'), str):
        given['data.train_files'] = task['path']
    if isinstance(task.get('reward'), str) and '.py:' in task['reward']:
        file, _, name = task['reward'].rpartition(':')
        given.update({'reward.custom_reward_function.path': file, 'reward.custom_reward_function.name': name})
    return [f'{key}={value}' for key, value in given.items()]


def config_text(success: float, env: Dict[str, Any], model: Optional[str], max_new_tokens: int) -> Optional[str]:
    """A config of this project; None if the data or rewards have no name."""
    if not all(isinstance(value, (str, int)) for value in env['task'].values()) or model is None:
        return None
    plan = plan_for(success)
    main = dict(
        exp_name='runs/preflight_grpo',
        env=dict(task=dict(env['task']), max_new_tokens=max_new_tokens),
        policy=dict(
            model=dict(pretrained=model),
            group_size=plan.group_size,
            collect=dict(groups=plan.groups),
            learn=dict(batch_groups=plan.groups, learning_rate=RATE),
        ),
    )
    create = dict(env=dict(type='token_env'), policy=dict(type='grpo'))
    shown = [pprint.pformat(each, width=110, sort_dicts=False) for each in (main, create)]
    return _CONFIG.format(success=success, main=shown[0], create=shown[1])


def write_plan(base: str, success: float, env: Dict[str, Any], model: Optional[str]) -> List[str]:
    """Write the config, TRL's arguments and verl's beside a page, and return the paths."""
    plan, length = plan_for(success), env.get('max_new_tokens', LENGTH)
    weights = list(env.get('reward_weights', {}).values())
    texts = (
        json.dumps(trl_arguments(plan, length, weights), indent=2) + '\n',
        '\n'.join(verl_arguments(plan, env, model, length)) + '\n',
        config_text(success, env, model, length),
    )
    written = {base + end: text for end, text in zip(ENDS, texts) if text is not None}
    for path, text in written.items():
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
    return list(written)


def of_earlier(base: str, written: List[str]) -> List[Part]:
    """The files that an earlier plan has left beside a page, and that this one has not written."""
    left = [base + end for end in ENDS if base + end not in written and os.path.exists(base + end)]
    line = f"{', '.join(left)}: of an earlier plan, left as found. Delete what does not belong to this page"
    return [Part('files beside this page', [line], [], examined=False)] if left else []
