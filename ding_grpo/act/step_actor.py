"""How GRPO acts and learns with any other model of DI-engine: an action is one step of an environment."""
import copy
from contextlib import contextmanager
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
from ding.torch_utils import to_device, to_tensor
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from ding_common import ConfigError, describe
from ding_grpo.config.checks import check_for_steps
from ding_grpo.data.batch import Batch, map_tensors
from ding_grpo.data.diagnose import check_sampled
from ding_grpo.data.folding import collate
from ding_grpo.data.row_generators import RowKey
from ding_grpo.rl_utils import entropy, naive_method, sum_of_squares
from ding_grpo.rollout import draw

from .actor import Actor, Forced, Reading
from .critic import StepCritic

Logit = Union[Tensor, Dict[str, Tensor]]
ROWS = 64  # of the trial that compares the model's modes: dropout must show


class StepActor(Actor):
    """``Actor`` of models with discrete or continuous actions: ``vac``, ``pg`` and every other model of DI-engine that
    has ``compute_actor`` or returns ``logit`` itself. ``logit`` is a tensor for discrete actions, and a dict of ``mu``
    and ``sigma`` for continuous ones. The model is in evaluation mode, except while it learns. ``exact`` is False for a
    model with dropout or batch norm, whose training mode gives other results."""
    length_name = 'episode_length'
    rate_name = 'steps_per_second'

    def __init__(self, model: nn.Module, temperature: float, seed: int, obs_shape: Any = None) -> None:
        """Sampling and learning divide the logits of discrete actions by ``temperature``. ``obs_shape``: of an
        observation, as ``policy.model`` has it."""
        self._model = model.eval()
        self._obs_shape = obs_shape
        self.exact, self._learns = True, False
        self._start, self._shape = 0, (-1, )  # of the environment's actions: the first of discrete ones; of others
        self._temperature = temperature
        self.reseed(seed)

    @classmethod
    def of(cls, model: nn.Module, cfg: Dict, seed: int) -> 'StepActor':
        """From the section ``policy`` of a config."""
        return cls(model, cfg.collect.temperature, seed, cfg.model.get('obs_shape'))

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
        name, observation = type(self._model).__name__, _sample(observations)
        try:
            with torch.no_grad():
                logit = self._logit(self._model, self._collate({0: observation}))
        except (RuntimeError, IndexError, TypeError) as error:
            raise ConfigError(
                f'policy.model.obs_shape: {name} does not read observations of shape {observations.shape} '
                f'({describe(error)})'
            ) from error
        self.exact = self._learns_as_it_samples(observation)
        if not hasattr(actions, 'contains'):
            return
        given = 'continuous' if isinstance(logit, dict) else 'discrete'
        has = 'continuous' if hasattr(actions, 'low') else 'discrete'
        start = int(getattr(actions, 'start', 0)) if hasattr(actions, 'n') else 0
        trial = np.clip(0, actions.low, actions.high).astype(np.float32) if has == 'continuous' else np.int64(start)
        if not actions.contains(trial):
            raise ConfigError(
                f'create_config.env: the actions of the environment are {actions}, and grpo gives {trial!r}. It needs '
                'Discrete, or a Box of float32 or float64: wrap the environment, for example by '
                'gymnasium.wrappers.TransformAction.'
            )
        if given != has:
            raise ConfigError(f'policy.model.action_space = {given!r}: the actions of the environment are {has}.')
        number = logit['mu'].shape[1] if given == 'continuous' else logit.shape[1]
        needed = int(np.prod(actions.shape)) if given == 'continuous' else int(actions.n)
        if number != needed:
            raise ConfigError(f'policy.model.action_shape = {number}: the environment has {needed}.')
        self._start, self._shape = start, actions.shape

    def _learns_as_it_samples(self, observation: Any) -> bool:
        """Whether the training mode of the model gives the same results, seen on rows of one observation."""
        model, obs = copy.deepcopy(self._model), self._collate(dict.fromkeys(range(ROWS), observation))
        try:
            with torch.no_grad(), self._own_random_numbers():
                found = [self._logit(model.train(mode), obs) for mode in (False, True)]
        except ValueError:  # batch norm of one row
            return False
        sampled, learned = ([*x.values()] if isinstance(x, dict) else [x] for x in found)
        return all(map(torch.equal, sampled, learned))

    def sample(
            self,
            obs: Dict[int, Any],
            row_keys: Dict[int, RowKey],
            forced: Dict[int, Forced] = {},
            enough: Optional[int] = None
    ) -> Dict[int, Dict[str, Any]]:
        """See ``Actor.sample``. ``check_for_steps`` refuses ``extra_rows``, and with them ``enough``."""
        batch = self._collate(obs)
        with torch.no_grad():
            logit = self._logit(self._model, batch)
        generators = [self._generators.of(i, row_keys[i]) for i in obs]
        if isinstance(logit, dict):
            noise = np.stack([g.standard_normal(logit['mu'].shape[1]) for g in generators])  # (B, N)
            action = logit['mu'] + logit['sigma'] * torch.from_numpy(noise).to(logit['mu'])
        else:
            uniform = np.array([g.random() for g in generators])  # (B, )
            action, _ = draw(logit, torch.from_numpy(uniform).to(logit.device))
        for line, i in enumerate(obs):
            if i in forced and forced[i][0] == 0:
                action[line] = torch.as_tensor(forced[i][1]).to(action)
        logp = _log_prob(logit, action).cpu()
        check_sampled(logp.isfinite(), self._model, list(obs), row_keys, obs=batch)
        return {i: dict(action=a, logp=p) for i, a, p in zip(obs, self._of_environment(action), logp)}

    def greedy(self, obs: Dict[int, Any]) -> Dict[int, Dict[str, Any]]:
        batch = self._collate(obs)
        with torch.no_grad():
            logit = self._logit(self._model, batch)
        top, action = (logit['mu'].sum(-1), logit['mu']) if isinstance(logit, dict) else logit.max(-1)
        check_sampled(top.isfinite().cpu(), self._model, list(obs), obs=batch)
        return {i: dict(action=a) for i, a in zip(obs, self._of_environment(action))}

    def _of_environment(self, action: Tensor) -> Tensor:
        """Actions of the model as DI-engine's environments get them, on the CPU; discrete ones of shape (1, )."""
        action = action.cpu()
        if action.is_floating_point():
            return action.view(len(action), *self._shape)
        return (action + self._start).unsqueeze(1)

    def forget(self, env_ids: Optional[List[int]]) -> None:
        self._generators.forget(env_ids)

    def transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        action = output['action'].flatten()
        action = action.unsqueeze(0) if action.is_floating_point() else action - self._start
        final = dict(final_obs=to_tensor(timestep.obs, dtype=torch.float32)) if timestep.done else {}
        return dict(
            final,
            obs=to_tensor(obs, dtype=torch.float32),
            action=action,
            logp=output['logp'].unsqueeze(0),
            reward=torch.tensor([np.asarray(timestep.reward).item()], dtype=torch.float32),
            # the second name is that of gym, in environments of DI-engine
            truncated=bool(timestep.info.get('truncated', timestep.info.get('TimeLimit.truncated', False))),
            failed=False,
            done=bool(timestep.done),
        )

    def read(
            self,
            model: nn.Module,
            batch: Batch,
            train_entropy: bool = False,
            critic: Optional[nn.Module] = None,
            squares: bool = False,
            teacher: None = None
    ) -> Reading:
        counted = batch.weight != 0  # (B, S)
        model.train(model is self._model and (self._learns or torch.is_grad_enabled()))
        output = self._forward(model, batch.obs, 'compute_actor' if critic is None else 'compute_actor_critic')
        model.eval()
        logit = self._logit_of(model, output)  # (M, N): the M steps that count
        logp = _log_prob(logit, batch.action[counted])  # (M, )
        h = _normal(logit).entropy() if isinstance(logit, dict) else entropy(logit)  # (M, )
        of_steps = dict(logp=logp, entropy=h)
        if critic is not None:
            of_steps['value'] = output['value']
        if squares:
            of_steps['squares'] = sum_of_squares(logit)
        return Reading(**{name: x.new_zeros(counted.shape).masked_scatter(counted, x) for name, x in of_steps.items()})

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
        device = next(self._model.parameters()).device
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
        value = critic(model, batch.obs)  # (M, )
        return value.new_zeros(counted.shape).masked_scatter(counted, value)

    def final_value(self, model: nn.Module, batch: Batch, critic: nn.Module) -> Tensor:
        value = torch.zeros(len(batch), device=batch.weight.device)
        if batch.truncated.any():
            value[batch.truncated] = critic(model, map_tensors(lambda x: x[batch.truncated], batch.final_obs))
        return value

    def memory_advice(self, cfg: Dict) -> str:
        return f'Use smaller mini-batches, now policy.learn.batch_groups = {cfg.learn.batch_groups}.'

    def _collate(self, obs: Dict[int, Any]) -> Any:
        batch = collate([_single(to_tensor(o, dtype=torch.float32), self._obs_shape) for o in obs.values()])
        return to_device(batch, next(self._model.parameters()).device)

    def _logit(self, model: nn.Module, obs: Any) -> Logit:
        return self._logit_of(model, self._forward(model, obs, 'compute_actor'))

    def _forward(self, model: nn.Module, obs: Any, mode: str) -> Any:
        return model(obs, mode=mode) if hasattr(model, 'compute_actor') else model(obs)

    def _logit_of(self, model: nn.Module, output: Any) -> Logit:
        logit = output.get('logit') if isinstance(output, dict) else None
        if isinstance(logit, dict) and {'mu', 'sigma'} <= set(logit):
            return logit
        if not isinstance(logit, Tensor) or logit.dim() != 2:
            raise ConfigError(
                f'policy.model.type: {type(model).__name__} has no actor that grpo can train. It needs logits of '
                "discrete actions (B, N), or mu and sigma of continuous ones (action_space 'discrete' or 'continuous')."
            )
        return logit if self._temperature == 1 else logit / self._temperature


def _sample(space: Any) -> Any:
    """An observation of a space, of numbers near 0. DI-engine sets the type of boxes to a class, which their
    ``sample`` cannot read, and some environments swap the bounds, or have some that overflow in a model."""
    inner = getattr(space, 'spaces', None)
    if inner is not None:
        return {name: _sample(s)
                for name, s in inner.items()} if hasattr(inner, 'items') else tuple(map(_sample, inner))
    if not hasattr(space, 'low'):
        return space.sample()
    numbers = np.random.default_rng(0).standard_normal(np.shape(space.low))
    low, high = np.minimum(space.low, space.high), np.maximum(space.low, space.high)
    return numbers.clip(low, high).astype(space.dtype)


def _single(obs: Any, shape: Any) -> Any:
    """One observation, which ``single_env_forward_wrapper`` of DI-engine hands on as a batch of one."""
    if isinstance(obs, dict):
        return {name: _single(o, shape.get(name) if isinstance(shape, dict) else None) for name, o in obs.items()}
    is_batch = shape is not None and obs.dim() == np.size(shape) + 1 and len(obs) == 1
    return obs[0] if is_batch else obs


def _normal(logit: Dict[str, Tensor]) -> Independent:
    # Without validation: ``diagnose`` reports where NaN or infinite values first appear.
    return Independent(Normal(logit['mu'], logit['sigma'], validate_args=False), 1, validate_args=False)


def _log_prob(logit: Logit, action: Tensor) -> Tensor:
    return _normal(logit).log_prob(action) if isinstance(logit, dict) else naive_method(logit, action)
