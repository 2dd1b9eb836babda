"""Keys that have moved to another section: old names and new ones, below ``policy``."""
from functools import reduce
from operator import getitem
from typing import Any, Dict, Iterator, Sequence, Tuple

from ding_common import ConfigError

MOVED = {
    'n_sample': 'collect.groups',
    'batch_size': 'learn.batch_groups',
    'collect.n_sample': 'collect.groups',
    'learn.batch_size': 'learn.batch_groups',
    'learn.num_updates': 'run.num_updates',
    'learn.keep_ckpt': 'run.keep_ckpt',
    'learn.shadow': 'instruments.shadow',
    'learn.shadow_every': 'instruments.shadow_every',
    'learn.noise_every': 'instruments.noise_every',
    'learn.tokens_freq': 'instruments.tokens_every',
    'learn.clip_ratio': 'learn.clip.ratio',
    'learn.clip_ratio_high': 'learn.clip.ratio_high',
    'learn.delta': 'learn.clip.delta',
    'learn.beta': 'learn.kl.beta',
    'learn.kl_type': 'learn.kl.type',
    'learn.kl_in_reward': 'learn.kl.in_reward',
    'learn.kl_ratio_correction': 'learn.kl.ratio_correction',
    'learn.kl_target': 'learn.kl.target',
    'learn.kl_horizon': 'learn.kl.horizon',
    'learn.ref_sync_freq': 'learn.kl.ref_sync_freq',
    'learn.ref_sync_mixup': 'learn.kl.ref_sync_mixup',
    'learn.entropy_weight': 'learn.entropy.weight',
    'learn.entropy_target': 'learn.entropy.target',
    'learn.entropy_step': 'learn.entropy.step',
    'learn.top_entropy': 'learn.entropy.top_share',
    'learn.gae_lambda': 'learn.critic.gae_lambda',
    'learn.value_weight': 'learn.critic.value_weight',
    'learn.value_norm': 'learn.critic.value_norm',
    'learn.value_clip': 'learn.critic.value_clip',
    'learn.value_warmup': 'learn.critic.value_warmup',
    'collect.stale': 'collect.max_staleness',
    'learn.sampler_correction': 'learn.off_policy.correction',
    'learn.sampler_correction_bound': 'learn.off_policy.bound',
    'learn.off_policy_mask': 'learn.off_policy.mask',
}
# Those that are entries of the list ``collect.processors`` now, by type and argument.
PROCESSORS = {
    'collect.min_p': ('min_p', 'p'),
    'collect.typical_p': ('typical_p', 'p'),
    'collect.repetition_penalty': ('repetition_penalty', 'penalty'),
    'collect.logit_bias': ('logit_bias', 'bias'),
    'collect.allowed_tokens': ('module:function', ''),
}


def written(section: Dict[str, Any], below: str = '') -> Iterator[Tuple[str, Any]]:
    """The dotted paths of all keys of a section, with their values."""
    for key, value in section.items():
        yield f'{below}{key}', value
        if isinstance(value, dict):
            yield from written(value, f'{below}{key}.')


def remove(policy: Dict[str, Any], path: str) -> None:
    """Remove a key from a section ``policy``, in place."""
    *sections, key = path.split('.')
    reduce(getitem, sections, policy).pop(key)


def move(policy: Dict[str, Any], without: Sequence[str]) -> None:
    """Give the keys of a section ``policy`` their new names, in place; those of ``without`` are removed."""
    for path, value in list(written(policy)):
        if path in MOVED:
            remove(policy, path)
            if MOVED[path] not in without:
                *sections, key = MOVED[path].split('.')
                section = policy
                for name in sections:
                    section = section.setdefault(name, {})
                section[key] = value


def check_moved(policy: Dict[str, Any]) -> None:
    """Refuse old names in the section ``policy`` as the user wrote it, all in one message."""
    found = []
    for path, _ in written(policy):
        if path in MOVED:
            found.append(f'policy.{path} is policy.{MOVED[path]} now')
        elif path in PROCESSORS:
            kind, argument = PROCESSORS[path]
            entry = f'dict(type={kind!r}, {argument}=...)' if argument else f'dict(type={kind!r})'
            found.append(f'policy.{path} is an entry of policy.collect.processors now, {entry}')
    if found:
        raise ConfigError(
            f"{'; '.join(found)}. `python -m ding_grpo.migrate FILE` rewrites a config of grpo, `python -m "
            'ding_grpo.from_ppo FILE` one of PPO.'
        )
