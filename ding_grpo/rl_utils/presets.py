"""The combinations of ratio, surrogate and reduction of the papers."""
from typing import Any, Dict

# Arguments of ``grpo_error`` by name. ``adv_method`` is not an argument of the loss: it is the method of
# ``group_advantage``, for papers that also define it.
LOSS_PRESETS: Dict[str, Dict[str, Any]] = dict(
    grpo=dict(reduction='sequence', adv_method='grpo'),
    bnpo=dict(reduction='token'),
    dr_grpo=dict(reduction='constant', adv_method='no_std'),
    dapo=dict(reduction='token', clip_ratio_high=0.28, adv_method='grpo'),
    cispo=dict(surrogate='cispo', reduction='token', clip_ratio_high=5.0),
    sapo=dict(surrogate='sapo', reduction='sequence'),
    gspo=dict(ratio='sequence', reduction='sequence', clip_ratio=3e-4, clip_ratio_high=4e-4),
    luspo=dict(ratio='sequence', reduction='sum'),
    # clipping ranges of the authors' script, with the advantages and the reduction of Dr. GRPO that they recommend
    dppo_tv=dict(surrogate='dppo_tv', reduction='constant', clip_ratio=0.15, adv_method='no_std'),
    dppo_kl=dict(surrogate='dppo_kl', reduction='constant', clip_ratio=0.05, adv_method='no_std'),
    gmpo=dict(surrogate='geo_mean', reduction='sequence', clip_ratio=0.4, adv_method='grpo'),
    gpg=dict(surrogate='gpg', reduction='token', adv_method='gpg'),
    dro=dict(surrogate='dro', reduction='token'),
    clip_cov=dict(surrogate='clip_cov', reduction='token', adv_method='grpo'),
    kl_cov=dict(surrogate='kl_cov', reduction='token', adv_method='grpo'),
    vespo=dict(surrogate='vespo', reduction='token'),
    cpgd=dict(surrogate='cpgd', reduction='sequence'),
)
