"""The combinations of ratio, surrogate, reduction and advantages of the papers."""
from dataclasses import dataclass
from typing import Dict

from .loss_config import LossConfig


@dataclass(frozen=True)
class Preset(LossConfig):
    """A loss, and the method of ``group_advantage`` that it is used with: that of GRPO if the paper defines none."""
    adv_method: str = 'grpo'


LOSS_PRESETS: Dict[str, Preset] = dict(
    grpo=Preset(),
    bnpo=Preset(reduction='token'),
    dr_grpo=Preset(reduction='constant', adv_method='no_std'),
    dapo=Preset(reduction='token', clip_ratio_high=0.28),
    cispo=Preset(surrogate='cispo', reduction='token', clip_ratio_high=5.0),
    sapo=Preset(surrogate='sapo'),
    gspo=Preset(ratio='sequence', clip_ratio=3e-4, clip_ratio_high=4e-4),
    gspo_token=Preset(ratio='sequence_token', clip_ratio=3e-4, clip_ratio_high=4e-4),
    luspo=Preset(ratio='sequence', reduction='sum'),
    # clipping ranges of the authors' script, with the advantages and the reduction of Dr. GRPO that they recommend
    dppo_tv=Preset(surrogate='dppo_tv', reduction='constant', clip_ratio=0.15, adv_method='no_std'),
    dppo_kl=Preset(surrogate='dppo_kl', reduction='constant', clip_ratio=0.05, adv_method='no_std'),
    gmpo=Preset(surrogate='geo_mean', clip_ratio=0.4),
    gpg=Preset(surrogate='gpg', reduction='token', adv_method='gpg'),
    dro=Preset(surrogate='dro', reduction='token'),
    clip_cov=Preset(surrogate='clip_cov', reduction='token'),
    kl_cov=Preset(surrogate='kl_cov', reduction='token'),
    vespo=Preset(surrogate='vespo', reduction='token'),
    cpgd=Preset(surrogate='cpgd'),
    fipo=Preset(surrogate='fipo', reduction='token', clip_ratio_high=0.28),
    m2po=Preset(surrogate='m2po', reduction='token', clip_ratio=0.0),
    real=Preset(surrogate='real'),
    flash_reinforce=Preset(surrogate='flash_reinforce', adv_method='batch_mean'),
)
