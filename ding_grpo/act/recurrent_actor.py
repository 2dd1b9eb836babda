"""How GRPO acts and learns with a model that has a memory: groups consist of whole episodes, and so do mini-batches."""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import Tensor, nn

from ding_common import ConfigError
from ding_grpo.data.batch import Batch, map_tensors

from .observations import inputs_of
from .step_actor import StepActor


class RecurrentActor(StepActor):
    """``StepActor`` of ``recurrent_vac``. In sampling, the state of an environment's episode is kept until ``forget``.
    Learning reads whole episodes from their start."""

    def __init__(self, model: nn.Module, cfg: Dict, seed: int) -> None:
        super().__init__(model, cfg, seed)
        self._states: Dict[int, Tensor] = {}  # by environment
        self._states_aside: Dict[int, Tensor] = {}  # of evaluations; while one runs, those of sampling

    def check_learning(self, cfg: Dict) -> None:
        super().check_learning(cfg)
        if cfg.learn.batch_steps is not None:
            raise ConfigError(
                f'policy.learn.batch_steps = {cfg.learn.batch_steps}: {type(self._model).__name__} has a memory and '
                'learns from whole episodes. Set it to None; policy.learn.batch_groups is the size of mini-batches.'
            )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See ``Actor.evaluating``. The environments of an evaluation have the same numbers, and other states."""
        self._states, self._states_aside = self._states_aside, self._states
        try:
            yield
        finally:
            self._states, self._states_aside = self._states_aside, self._states

    def forget(self, env_ids: Optional[List[int]]) -> None:
        super().forget(env_ids)
        for i in list(self._states) if env_ids is None else env_ids:
            self._states.pop(i, None)

    def _next_step(self, inputs: Any, env_ids: List[int]) -> Any:
        start = self._weight.new_zeros(self._model.state_size)
        state = torch.stack([self._states.get(i, start) for i in env_ids])
        output = self._model(inputs, mode='compute_actor', state=state)
        self._states.update(zip(env_ids, output['state'].unbind(0)))
        return output

    def _forward(
            self, model: nn.Module, inputs: Any, mode: str = 'compute_actor', length: Optional[Tensor] = None
    ) -> Any:
        return model(inputs, mode=mode, length=length)

    def final_value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        """See ``Actor.final_value``. The critic reads the whole row before the last observation."""
        value = torch.zeros(len(batch), device=batch.weight.device)
        if batch.truncated.any():
            cut = batch.take(batch.truncated.nonzero().squeeze(1).cpu())
            steps, length = cut.length.tolist(), cut.length + 1

            def with_last(obs: Tensor, last: Tensor) -> Tensor:
                return torch.cat([x for row in zip(obs.split(steps), last.split(1)) for x in row])

            obs = map_tensors(with_last, cut.obs, cut.final_obs)
            found = self._forward(model, inputs_of(obs)[0], 'compute_critic', length)['value']
            value[batch.truncated] = found[length.cumsum(0) - 1]
        return value
