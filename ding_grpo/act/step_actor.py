"""How GRPO acts and learns with any other model of DI-engine: an action is one step of an environment."""
import copy
from contextlib import contextmanager
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from ding.torch_utils import to_device
from ding.torch_utils.network.rnn import LSTMForwardWrapper
from torch import Tensor, nn

from ding_common import ConfigError, describe
from ding_grpo.config.checks import check_for_steps
from ding_grpo.data.batch import Batch, map_tensors
from ding_grpo.data.diagnose import check_sampled
from ding_grpo.data.row_generators import RowKey
from ding_grpo.model import RecurrentVAC

from .actor import Actor, Forced, Reading, Wanted
from .critic import StepCritic
from .distributions import Distribution, ToSpace, distribution
from .initial_weights import init_as_ppo
from .observations import MASK, as_tensors, batch_of, inputs_of, rows_of
from .trees import Trees

ROWS = 64  # of the trial that compares the model's modes: dropout must show
_TRIAL = -1  # in place of an environment's number


class StepActor(Actor):
    """``Actor`` of ``vac``, ``pg`` and every other model of DI-engine that has ``compute_actor`` or returns ``logit``
    itself, for the actions of ``distributions.py``. The model is in evaluation mode, except while it learns. ``exact``
    is False for a model with dropout or batch norm, whose training mode gives other results."""
    length_name = 'episode_length'
    rate_name = 'steps_per_second'

    def __init__(self, model: nn.Module, cfg: Dict, seed: int) -> None:
        """``cfg``: the section ``policy`` of a config."""
        if cfg.learn.ppo_param_init:
            init_as_ppo(model)
        self._model = model.eval()
        self._layers = [*model.modules()]
        self._own_train = any(
            isinstance(layer, torch.jit.ScriptModule) or getattr(layer.train, '__func__', None) is not nn.Module.train
            for layer in self._layers
        )
        self._weight = next(model.parameters())  # whose device is the model's
        self._obs_shape, self._temperature = cfg.model.get('obs_shape'), cfg.collect.temperature
        self.exact, self._learns = True, False
        self._to_space = ToSpace()
        self.reseed(seed)

    def check_learning(self, cfg: Dict) -> None:
        check_for_steps(cfg)

    def bind(self, spec: Optional[NamedTuple], spaces: Optional[Tuple] = None) -> None:
        """See ``Actor.bind``. A sample shows whether the model reads the observations and has the actions."""
        if spec is not None:
            raise ConfigError(
                f"policy.model.type: {type(self._model).__name__} does not read tokens. With token_env, grpo needs "
                "model type 'causal_lm'."
            )
        if spaces is not None:
            self._check_spaces(*spaces)

    def _check_spaces(self, observations: Any, actions: Any) -> None:
        for key, space in (('observation_space', observations), ('action_space', actions)):
            if space is None:
                raise ConfigError(f'create_config.env: the environment has no {key}, which grpo reads.')
        observation = _sample(observations)
        try:
            found = self._act(self.batch([observation]), [_TRIAL])
        except (RuntimeError, IndexError, TypeError) as error:
            raise ConfigError(_unread(self._model, observations, describe(error))) from error
        self.forget([_TRIAL])
        self.exact = self._learns_as_it_samples(observation)
        if hasattr(actions, 'contains'):
            self._to_space = found.to_space(actions)

    def _learns_as_it_samples(self, observation: Any) -> bool:
        """Whether the training mode of the model gives the same results, seen on rows of one observation."""
        model, obs = copy.deepcopy(self._model), to_device(self.batch([observation] * ROWS), self._weight.device)
        try:
            with torch.no_grad(), self._own_random_numbers():
                inputs, length = inputs_of(obs)[0], torch.ones(ROWS, dtype=torch.long)
                found = [self._forward(model.train(mode), inputs, length=length)['logit'] for mode in (False, True)]
        except ValueError:  # batch norm of one row
            return False
        return all(map(torch.equal, *map(_leaves, found)))

    def sample(
            self,
            obs: Dict[int, Any],
            row_keys: Optional[Dict[int, RowKey]] = None,
            forced: Dict[int, Forced] = {},
            enough: Optional[int] = None,
            trees: Optional[Trees] = None
    ) -> Dict[int, Dict[str, Any]]:
        """See ``Actor.sample``. ``check_for_steps`` refuses what needs ``enough`` and ``trees``."""
        seen = self.batch([*obs.values()])
        action, logp = self.act(seen, list(obs), row_keys, forced)
        if row_keys is None:  # of evaluations, of which nothing is learned
            return {i: dict(action=a) for i, a in zip(obs, self._to_space(action))}
        rows = zip(obs, self._to_space(action), action.unbind(0), logp.unbind(0), rows_of(seen))
        return {i: dict(action=a, taken=t, logp=p, seen=o) for i, a, t, p, o in rows}

    def act(self,
            seen: Any,
            env_ids: List[int],
            row_keys: Optional[Dict[int, RowKey]],
            forced: Dict[int, Forced] = {}) -> Tuple[Tensor, Tensor]:
        """Actions (B, *) of a batch of observations on the CPU, of one environment each, and their log-probabilities
        (B, ). ``row_keys``: see ``sample``; None: the most probable actions."""
        found = self._act(seen, env_ids)
        if row_keys is None:
            action = found.mode()
        else:
            action = found.sample([self._generators.of(i, row_keys[i]) for i in env_ids])
        for line, i in enumerate(env_ids) if forced else ():
            if 0 in forced.get(i, {}):
                action[line] = torch.as_tensor(forced[i][0]).to(action)
        logp = found.log_prob(action).cpu()
        check_sampled(logp.isfinite(), self._model, env_ids, row_keys or {}, obs=seen)
        return action.cpu(), logp

    def batch(self, observations: Sequence[Any]) -> Any:
        """A batch of observations as tensors on the CPU."""
        return batch_of(observations, self._obs_shape)

    def to_values(self, action: Tensor) -> List[Any]:
        """Actions as numbers and arrays of gymnasium's spaces."""
        return self._to_space.values(action)

    def transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        final = dict(final_obs=as_tensors(timestep.obs)) if timestep.done else {}
        return dict(
            final,
            obs=output['seen'],
            action=output['taken'].unsqueeze(0),
            logp=output['logp'].unsqueeze(0),
            reward=torch.tensor([np.asarray(timestep.reward).item()], dtype=torch.float32),
            # the second name is that of gym, in environments of DI-engine
            truncated=bool(timestep.info.get('truncated', timestep.info.get('TimeLimit.truncated', False))),
            failed=False,
            done=bool(timestep.done),
        )

    def read(self, model: nn.Module, batch: Batch, wanted: Wanted = Wanted()) -> Reading:
        counted = batch.weight != 0  # (B, S)
        self._train(model, self._learns or torch.is_grad_enabled())
        inputs, mask = inputs_of(batch.obs)
        mode = 'compute_actor' if wanted.critic is None else 'compute_actor_critic'
        output = self._forward(model, inputs, mode, batch.length)
        self._train(model, False)
        found = self._distribution(output, mask)  # of the M steps that count
        of_steps = dict(logp=found.log_prob(batch.action[counted]), entropy=found.entropy())  # (M, ) each
        if wanted.critic is not None:
            of_steps['value'] = output['value']
        if wanted.squares:
            of_steps['squares'] = found.squares()
        return Reading(**{name: x.new_zeros(counted.shape).masked_scatter(counted, x) for name, x in of_steps.items()})

    def _train(self, model: nn.Module, mode: bool) -> None:
        """The training mode of the model that is trained; all others evaluate. Setting it layer by layer spares small
        mini-batches the walk of ``nn.Module.train`` over the model."""
        if model is not self._model or self._own_train:
            model.train(mode and model is self._model)
            return
        for layer in self._layers:
            vars(layer)['training'] = mode

    @contextmanager
    def aside(self) -> Iterator[None]:
        buffers = [(x, x.clone()) for x in self._model.buffers()]
        self._learns = True
        try:
            with self._own_random_numbers():
                yield
        finally:
            self._learns = False
            for x, before in buffers:
                x.copy_(before)

    def _own_random_numbers(self) -> ContextManager:
        device = self._weight.device
        return torch.random.fork_rng([device] if device.type == 'cuda' else [])

    def make_critic(self, cfg: Dict) -> nn.Module:
        name = type(self._model).__name__
        if cfg.critic.model is not None:
            raise ConfigError(
                f'policy.learn.critic.model = {cfg.critic.model!r}: only available for language models. The values are '
                'those of policy.model; for separate networks, set policy.model.share_encoder to False.'
            )
        if not (hasattr(self._model, 'compute_actor_critic') and hasattr(self._model, 'compute_critic')):
            raise ConfigError(
                f"policy.learn.advantage = 'gae': policy.model, {name}, has no value head. Use model type 'vac'."
            )
        parts = (getattr(self._model, key, None) for key in ('actor', 'critic'))
        if cfg.critic.value_warmup > 0 and not all(isinstance(part, nn.Module) for part in parts):
            raise ConfigError(
                f'policy.learn.critic.value_warmup = {cfg.critic.value_warmup}: {name} does not tell which of its '
                "weights are the critic's. Set it to 0, or use model type 'vac'."
            )
        return StepCritic()

    def value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        counted = batch.weight != 0  # (B, S)
        value = self._forward(model, inputs_of(batch.obs)[0], 'compute_critic', batch.length)['value']  # (M, )
        return value.new_zeros(counted.shape).masked_scatter(counted, value)

    def final_value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        value = torch.zeros(len(batch), device=batch.weight.device)
        if batch.truncated.any():
            obs = map_tensors(lambda x: x[batch.truncated], batch.final_obs)
            value[batch.truncated] = self._forward(model, inputs_of(obs)[0], 'compute_critic')['value']
        return value

    def memory_advice(self, cfg: Dict) -> str:
        return f'Use smaller mini-batches, now policy.learn.batch_groups = {cfg.learn.batch_groups}.'

    @torch.no_grad()
    def _act(self, seen: Any, env_ids: List[int]) -> Distribution:
        """For a batch of observations on the CPU."""
        inputs, mask = inputs_of(to_device(seen, self._weight.device))
        return self._distribution(self._next_step(inputs, env_ids), mask)

    def _next_step(self, inputs: Any, env_ids: List[int]) -> Any:
        """What the model returns for the next step of the episodes of these environments."""
        return self._forward(self._model, inputs)

    def _forward(
            self, model: nn.Module, inputs: Any, mode: str = 'compute_actor', length: Optional[Tensor] = None
    ) -> Any:
        """What a model returns for M steps. ``length`` (B, ), of whole rows, is for models with a memory."""
        return model(inputs, mode=mode) if hasattr(model, 'compute_actor') else model(inputs)

    def _distribution(self, output: Any, mask: Optional[Tensor]) -> Distribution:
        logit = output.get('logit') if isinstance(output, dict) else None
        found = distribution(logit, self._temperature, mask)
        if found is None:
            raise ConfigError(
                f'policy.model.type: {type(self._model).__name__} has no actor that grpo can train. It needs logits of '
                "discrete actions (B, N), or mu and sigma of continuous ones (action_space 'discrete', 'continuous' or "
                "'hybrid')."
            )
        return found


def _leaves(logit: Any) -> List[Tensor]:
    if isinstance(logit, Tensor):
        return [logit]
    return [leaf for part in (logit.values() if isinstance(logit, dict) else logit) for leaf in _leaves(part)]


def _unread(model: nn.Module, observations: Any, reason: str) -> str:
    """Why a model does not read observations, with a way out."""
    name, shape = type(model).__name__, observations.shape
    of = f'of shape {shape}' if shape is not None else f'{observations}'
    told = f'policy.model.obs_shape: {name} does not read observations {of} ({reason})'
    memories = (nn.RNNBase, nn.RNNCellBase, LSTMForwardWrapper)  # of torch, of DI-engine
    if not isinstance(model, RecurrentVAC) and any(isinstance(module, memories) for module in model.modules()):
        return f"{told}. Of recurrent models, grpo trains policy.model.type = 'recurrent_vac'."
    if hasattr(observations, 'spaces'):
        return f"{told}. Flatten them: env.gymnasium_wrappers = ['gymnasium.wrappers:FlattenObservation']."
    return told


def _sample(space: Any) -> Any:
    """An observation of a space, of numbers near 0. DI-engine sets the type of boxes to a class, which their
    ``sample`` cannot read, and some environments swap the bounds, or have some that overflow in a model."""
    inner = getattr(space, 'spaces', None)
    if inner is not None:
        if not hasattr(inner, 'items'):
            return tuple(map(_sample, inner))
        return {name: np.ones(s.shape, s.dtype) if name == MASK else _sample(s) for name, s in inner.items()}
    if not hasattr(space, 'low'):
        return space.sample()
    numbers = np.random.default_rng(0).standard_normal(np.shape(space.low))
    low, high = np.minimum(space.low, space.high), np.maximum(space.low, space.high)
    return numbers.clip(low, high).astype(space.dtype)
