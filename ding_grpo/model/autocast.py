"""The types in which a model multiplies: ``policy.model.autocast`` and ``autocast_output``."""
from typing import NamedTuple, Optional

import torch

from ding_common import ConfigError
from ding_grpo.rl_utils.log_probs.matrix_product import SUMS_IN_FLOAT32, multiplies_bfloat16

EMULATED = dict(
    cpu='this processor emulates products of bfloat16, up to 100 times slower than float32.',
    cuda='this GPU emulates products of bfloat16.'
)


class Autocast(NamedTuple):
    """Whether layers (``kind``: None, ``auto`` or ``bfloat16``) and the output layer (``output``) multiply bfloat16.
    Weights keep their type."""
    kind: Optional[str] = None
    output: bool = False

    def check(self) -> None:
        """Raise a ``ConfigError`` if a value is invalid."""
        if self.kind not in (None, 'auto', 'bfloat16'):
            raise ConfigError(f"policy.model.autocast = {self.kind!r}: must be None, 'auto' or 'bfloat16'.")
        if self.output and self.kind is None:
            raise ConfigError(
                "policy.model.autocast_output = True: needs policy.model.autocast = 'auto' or 'bfloat16'."
            )
        if self.output and not SUMS_IN_FLOAT32:
            raise ConfigError(
                f'policy.model.autocast_output = True: needs torch 2.8 or later, not {torch.__version__}.'
            )

    def dtype_on(self, device_type: str) -> Optional[torch.dtype]:
        """The type in which layers multiply on ``cpu`` or ``cuda``, None for that of their weights."""
        if self.kind is None or self.kind == 'auto' and not multiplies_bfloat16(device_type):
            return None
        return torch.bfloat16

    def notice(self, half: bool, device_type: str, key: str) -> Optional[str]:
        """A line for the log: the type that ``auto`` has chosen, or that the device emulates bfloat16; None if neither
        applies. ``half``: whether weights are in bfloat16. ``key``: config key of the model."""
        native = multiplies_bfloat16(device_type)
        if self.kind == 'auto' and (native or not half):
            return f"{key}.autocast = 'auto': layers compute in {'bfloat16' if native else 'float32'}."
        if native or not (half or self.kind):
            return None
        name, other = ('dtype', 'float32') if half else ('autocast', 'auto')
        return f"{key}.{name} = 'bfloat16': {EMULATED[device_type]} Use {other!r}."
