"""Coefficients that follow a target. Checkpoints contain their values."""


class KLCoefficient:
    """
    Overview:
        The coefficient of the KL to the reference. With a target, each update of B rows multiplies it by \
        1 + clip(KL / target - 1, -0.2, 0.2) B / horizon, https://arxiv.org/abs/1909.08593.
    Interfaces:
        ``follow``
    """

    def __init__(self, value: float, target: float, horizon: int) -> None:
        """
        Arguments:
            - value (:obj:`float`): ``policy.learn.beta``, the first value.
            - target (:obj:`Optional[float]`): ``policy.learn.kl_target``; None keeps the value.
            - horizon (:obj:`int`): ``policy.learn.kl_horizon``, in rows.
        """
        self.value, self._target, self._horizon = value, target, horizon

    def follow(self, kl: float, rows: int) -> None:
        """Adapt the value after an update, from the mean KL of its tokens and the number of its rows."""
        if self._target is not None:
            error = min(max(kl / self._target - 1, -0.2), 0.2)
            self.value *= max(1 + error * rows / self._horizon, 0)


class EntropyCoefficient:
    """
    Overview:
        The coefficient of the entropy bonus. With a target, it grows by a step after an update whose entropy was at \
        most the target, and otherwise it falls by a step, down to 0. The bonus is off while the entropy is above the \
        target. https://arxiv.org/abs/2505.22312.
    Interfaces:
        ``follow``, ``applied``
    """

    def __init__(self, value: float, target: float, step: float) -> None:
        """
        Arguments:
            - value (:obj:`float`): ``policy.learn.entropy_weight``, the first value.
            - target (:obj:`Optional[float]`): ``policy.learn.entropy_target``, in nats; None keeps the value.
            - step (:obj:`float`): ``policy.learn.entropy_step``.
        """
        self.value, self._target, self._step = value, target, step
        self.entropy = float('inf')  # of the last update: no bonus before the first measurement

    @property
    def applied(self) -> float:
        """The coefficient of the next update."""
        return self.value if self._target is None or self.entropy <= self._target else 0.0

    def follow(self, entropy: float) -> None:
        """Adapt the value after an update, from the mean entropy of its tokens."""
        self.entropy = entropy
        if self._target is not None:
            self.value = max(self.value + (self._step if entropy <= self._target else -self._step), 0.0)
