"""Coefficients that follow a target. Checkpoints contain their values."""
from typing import Any, Dict, List


class Coefficients:
    """
    The coefficients of an update: of the KL to the reference, and of the entropy bonus. Each can follow a target:

    - With ``learn.kl.target``, each update of B rows multiplies ``beta`` by 1 + clip(KL / target - 1, -0.2, 0.2)
      min(B / ``kl.horizon``, 1), https://arxiv.org/abs/1909.08593.
    - With ``entropy.target``, the coefficient of the bonus grows by ``entropy.step`` after an update whose
      entropy was at most the target. Otherwise it falls by this step, down to 0. The bonus acts only after
      updates whose entropy was at most the target, https://arxiv.org/abs/2505.22312.
    """

    def __init__(self, cfg: Dict) -> None:
        self._cfg = cfg
        self.beta = float(cfg.kl.beta)  # of this update
        self._entropy_weight = float(cfg.entropy.weight)
        self._entropy = float('inf')  # of the last update: no bonus before the first measurement

    @property
    def entropy_weight(self) -> float:
        target = self._cfg.entropy.target
        return self._entropy_weight if target is None or self._entropy <= target else 0.0

    @property
    def names(self) -> List[str]:
        targets = dict(beta=self._cfg.kl.target, entropy_weight=self._cfg.entropy.target)
        return [name for name, target in targets.items() if target is not None]

    def metrics(self) -> Dict[str, float]:
        """Those coefficients of this update that follow a target."""
        return {name: float(getattr(self, name)) for name in self.names}

    def follow(self, metrics: Dict[str, float], rows: int) -> None:
        """Adapt the coefficients after an update of ``rows`` rows, except those that it did not measure."""
        cfg = self._cfg
        if cfg.kl.target is not None and 'kl' in metrics:
            error = min(max(metrics['kl'] / cfg.kl.target - 1, -0.2), 0.2)
            self.beta *= 1 + error * min(rows / cfg.kl.horizon, 1)
        if cfg.entropy.target is not None and 'entropy' in metrics:
            self._entropy = metrics['entropy']
            step = cfg.entropy.step if self._entropy <= cfg.entropy.target else -cfg.entropy.step
            self._entropy_weight = max(self._entropy_weight + step, 0.0)

    def state_dict(self) -> Dict[str, Any]:
        """Empty without a target."""
        if not self.names:
            return {}
        return dict(coefficients=dict(beta=self.beta, entropy_weight=self._entropy_weight, entropy=self._entropy))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        saved = state.get('coefficients', {})
        if self._cfg.kl.target is not None:
            self.beta = saved.get('beta', self.beta)
        if self._cfg.entropy.target is not None:
            self._entropy_weight = saved.get('entropy_weight', self._entropy_weight)
            self._entropy = saved.get('entropy', self._entropy)
