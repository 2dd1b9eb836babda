"""The loss that a config describes."""
import copy
from dataclasses import replace
from typing import Dict

from ding_common import ConfigError
from ding_grpo.rl_utils import LOSS_PRESETS, Preset

from .key import value_at
from .surrogate import find_surrogate

# Options that a preset sets and a config may set individually, by key below ``policy.learn``; None takes the preset's.
CHOICES = {
    'clip_ratio': 'clip.ratio',
    'clip_ratio_high': 'clip.ratio_high',
    'delta': 'clip.delta',
    **dict(ratio='ratio', surrogate='surrogate', reduction='reduction', adv_method='adv_method'),
}


def loss_config(learn: Dict) -> Preset:
    """The preset of a section ``policy.learn``, in which the choices that are set individually replace those of the
    preset. Raises ``ConfigError`` if the loss has no such option, or two of them exclude each other."""
    chosen = {option: value for option, key in CHOICES.items() if (value := value_at(learn, key)) is not None}
    if learn['advantage'] == 'gae':  # its advantages are not those of any preset
        chosen['adv_method'] = learn['adv_method'] or 'batch'
    options, kl = dict(learn['surrogate_options']), learn['kl']
    chosen.update(surrogate_options=options, surrogate=find_surrogate(surrogate_name(learn), options))
    chosen.update(beta=0.0 if kl['in_reward'] else kl['beta'])
    chosen.update(kl_type=kl['type'], kl_ratio_correction=kl['ratio_correction'])
    try:
        return replace(LOSS_PRESETS[learn['loss']], **chosen)
    except ValueError as error:
        option, _, rest = str(error).partition(' ')
        raise ConfigError(f'policy.learn.{CHOICES.get(option, option)} {rest}.') from error


def with_preset(learn: Dict, name: str) -> Dict:
    """A copy of the section ``policy.learn`` with a preset's loss, and without choices of its own."""
    learn = copy.deepcopy(learn)
    method = learn['adv_method'] if learn['advantage'] == 'gae' else None  # whether to normalise; no preset says it
    learn['clip'].update(dict.fromkeys(learn['clip']))
    learn.update(loss=name, ratio=None, surrogate=None, reduction=None, adv_method=method, surrogate_options={})
    return learn


def surrogate_name(learn: Dict) -> str:
    """The name of the surrogate for the section ``policy.learn``."""
    return learn['surrogate'] or LOSS_PRESETS[learn['loss']].surrogate
