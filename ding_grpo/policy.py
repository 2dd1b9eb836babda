"""
Group Relative Policy Optimization as a DI-engine policy. Departures from https://arxiv.org/abs/2402.03300:

1. ``logp_old`` is the log-probability that the sampler reports, under temperature, top-k and top-p. In bfloat16 and
   float16 the learner rounds differently from the sampler (``sampler_gap_max``), and a narrow clipping range would clip
   this difference. In these types, groups that the current weights sampled use the learner's first pass instead. The
   first mini-batch needs this pass anyway; the others need one more forward pass before the first step. Rounding
   depends on the rows that are read together. Further epochs therefore reuse the mini-batches of the first epoch, in
   another order.
2. The KL term is off by default (``kl.beta=0``). There is no reference model then.
3. The reference model is the initial policy. The paper renews it from time to time; ``kl.ref_sync_freq`` does the same.
4. Two options are not in the paper: ``adv_method='no_std'`` does not divide advantages by the group's standard
   deviation, and ``entropy.weight`` adds an entropy bonus.
5. ``advantage='return_to_go'`` compares each step by its later rewards, like process supervision (section 4.1.3 of the
   paper), which compares their sums. A discount and the extension of truncated episodes are added.
"""
from functools import singledispatch
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from ding.policy import Policy
from ding.utils import POLICY_REGISTRY
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from ding_common import ConfigError, config_errors, describe, parallel
from ding_common.content import check_content, taking
from ding_common.processes.memory import memory_advice

from .act.recurrent_actor import RecurrentActor
from .act.step_actor import StepActor
from .act.token_actor import TokenActor
from .act.trees import Trees
from .config.checks import check_for_turns, check_policy_config
from .config.keys import DEFAULTS
from .config.loss_options import loss_config
from .config.models import model_type
from .data.batch import Batch
from .data.diagnose import check_weights
from .data.folding import fold_group, whole_episodes
from .data.row_generators import EpisodeKeys
from .data.token_rewards import with_token_rewards
from .learn.advantage import Advantage
from .learn.learning import Learning
from .learn.observer import Observers
from .model import CausalLM, RecurrentVAC
from .model.sharding import Sharding
from .rl_utils import row_mean

make_actor = singledispatch(StepActor)  # by the model's class
make_actor.register(CausalLM, TokenActor.of)
make_actor.register(RecurrentVAC, RecurrentActor)


@POLICY_REGISTRY.register('grpo')
class GRPOPolicy(Policy):
    """GRPO, https://arxiv.org/abs/2402.03300. A training sample is a whole group of ``group_size`` trajectories from
    one start. ``collect.groups`` and ``learn.batch_groups`` count groups."""

    config = DEFAULTS
    learns_from_groups = True
    _sharding: Optional[Sharding] = None
    _learning: Optional[Learning] = None  # if ``enable_field`` has 'learn'
    _age: Optional[Tuple[int, int]] = None  # of weights that another process has learned

    def __init__(
            self,
            cfg: Dict,
            model: Optional[torch.nn.Module] = None,
            enable_field: Optional[List[str]] = None,
            seed: Optional[int] = None,
    ) -> None:
        """
        Arguments:
            - cfg (:obj:`Dict`): The compiled section ``policy``.
            - model (:obj:`Optional[nn.Module]`): The model; None builds the one of ``cfg.model``.
            - enable_field (:obj:`Optional[List[str]]`): Modes: 'learn', 'collect', 'eval'; None for all.
            - seed (:obj:`Optional[int]`): Of the run; None for the one that torch has just been seeded with.
        """
        self.seed = torch.initial_seed() if seed is None else seed
        check_policy_config(cfg, self.default_config())
        self._advantage = Advantage(
            loss_config(cfg.learn).adv_method,
            cfg.learn.advantage,
            cfg.collect.discount_factor,
            cfg.learn.extend_truncated,
            anchor_weight=cfg.learn.anchor_weight,
            by_trajectory=cfg.learn.trajectories
        )
        super().__init__(cfg, model, enable_field)
        # The model is on the GPU of LOCAL_RANK. DI-engine uses RANK, which differs from it on several machines.
        self._device = str(next(self._model.parameters()).device)

    def default_model(self) -> Tuple[str, List[str]]:
        return model_type(self._cfg.model), ['ding_grpo.model', 'ding.model']

    def _create_model(self, cfg: Dict, model: Optional[torch.nn.Module] = None) -> torch.nn.Module:
        if isinstance(model, PreTrainedModel):
            model = CausalLM.from_model(model)
        written = {key: value for key, value in cfg.model.items() if key not in ('type', 'import_names')}
        with config_errors(f'policy.model = {written!r}: {model_type(cfg.model)!r} cannot be built with them'):
            model = super()._create_model(cfg, model)
        check_weights(model, 'policy.model')
        self.actor = make_actor(model, cfg, self.seed)
        self.actor.check_learning(cfg)
        if cfg.shard and cfg.multi_gpu:
            self._shard(model)
        return model

    def _shard(self, model: CausalLM) -> None:
        """Divide the model among the processes before it is moved to a GPU; sampling uses a plain copy of it."""
        self._init_multi_gpu_setting(model)
        if parallel.world_size() > 1:
            self._sharding = Sharding(model, self._cfg.cuda, self._cfg.shard)
            self.actor = make_actor(self._sharding.copy, self._cfg, self.seed)

    def _init_multi_gpu_setting(self, model: torch.nn.Module, bp_update_sync: bool = True) -> None:
        if self._sharding is not None:
            return
        if parallel.world_size() != parallel.launched():
            raise ConfigError(
                f'policy.multi_gpu = True: torchrun has started {parallel.launched()} processes, which are not '
                'connected. Start them with torchrun -m ding_grpo.'
            )
        parallel.broadcast(list(model.state_dict().values()))

    def bind(self, spec: Any, spaces: Optional[Tuple] = None) -> None:
        """
        Overview:
            Receive facts about the environment, which the collector and the evaluator have.
        Arguments:
            - spec (:obj:`Any`): The environment's ``token_spec``, None if it has none.
            - spaces (:obj:`Optional[Tuple]`): The spaces of its observations and its actions.
        Raises:
            - ConfigError: If environment and model do not fit.
        """
        self.actor.bind(spec, spaces)
        if self._sharding is not None:
            self._sharding.check_reading()
            self.actor.bind_reference(self._model)
        if spec is not None:
            check_for_turns(self._cfg, spec.max_turns, getattr(spec, 'trajectories', False))
            self._advantage = self._advantage._replace(by_turn=spec.max_turns > 1)
        if self._cfg.learn.reward_aggregation == 'normalize_then_sum':
            self._advantage = self._advantage._replace(part_weights=spec.reward_weights)
        if self._learning is not None:
            self._learning.bind(spec, self._advantage)

    def _get_group_policy(self) -> 'GRPOPolicy':
        """What ``group_policy`` asks for, in the way of DI-engine's ``get_attribute``."""
        return self

    @property
    def cfg(self) -> Dict:
        """The section ``policy``."""
        return self._cfg

    @property
    def device(self) -> str:
        return self._device

    @property
    def mesh(self) -> Optional[DeviceMesh]:
        """The processes among which the model is divided; None if each has it whole."""
        return None if self._sharding is None else self._sharding.mesh

    @property
    def spec(self) -> Any:
        """The environment's ``token_spec``, None without one."""
        return self.actor.spec

    @property
    def needs_greedy(self) -> bool:
        """Whether each group is compared with a greedy episode."""
        return self._advantage.method == 'remax'

    @property
    def age(self) -> Tuple[int, int]:
        """Number of updates and of optimizer steps that have made the weights."""
        own = (0, 0) if self._learning is None else (self._learning.updates, self._learning.updater.optimizer_steps)
        return own if self._age is None else self._age

    def take(self, weights: Dict[str, torch.Tensor], age: Tuple[int, int]) -> None:
        """Act from now on by the weights of a policy that learns in another process."""
        self._model.load_state_dict(weights)
        self._age = age

    def reseed(self, process: int) -> None:
        """Draw other random numbers than the other processes that collect for the same learner."""
        self.seed = int(np.random.SeedSequence([self.seed, process]).generate_state(1)[0])
        self.actor.reseed(self.seed)

    @property
    def observers(self) -> Observers:
        """Observers of its updates, by name."""
        return self._learning.observers

    @property
    def whole_model(self) -> torch.nn.Module:
        """The model with whole weights. While the policy learns with ``shard``, it is empty."""
        return self._model if self._sharding is None else self._sharding.copy

    def _get_batch_size(self) -> int:
        return self._cfg.learn.batch_groups

    def _get_n_sample(self) -> int:
        return self._cfg.collect.groups

    def _init_learn(self) -> None:
        self._learning = Learning(self._cfg, self.actor, self._model, self._advantage, self._sharding, self._check_run)

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self._learning.optimizer

    @_optimizer.setter
    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._learning.optimizer = optimizer

    def _check_run(self, cfg: Dict) -> None:
        check_policy_config(cfg, self.default_config())
        self.actor.check_learning(cfg)

    def _forward_learn(self, data: List[Dict[str, Any]]) -> Dict[str, float]:
        """Perform one update, see ``update.py``. ``data`` are groups from ``get_train_sample``. Returns metrics, see
        docs/reference/metrics.md."""
        return self._learning.update(data)

    def _monitor_vars_learn(self) -> List[str]:
        return self._learning.metric_names

    def _state_dict_learn(self) -> Dict[str, Any]:
        check_weights(self.whole_model, f'after update {self._learning.updates}')  # a run cannot resume from NaN or Inf
        return self._learning.state_dict()

    def _load_state_dict_learn(self, state_dict: Dict[str, Any]) -> None:
        own = self._learning.state_dict()
        self._load_weights(state_dict, own if self._learning.is_own(state_dict) else dict(model=own['model']))
        with taking('the checkpoint'):
            self._learning.load_state_dict(state_dict)

    def _init_collect(self) -> None:
        self._unroll_len = self._cfg.collect.unroll_len
        self._priority = self._cfg.priority
        self._own_keys, self.trees = EpisodeKeys(), Trees(self._cfg.collect.tree)

    def _forward_collect(
            self,
            data: Dict[int, Any],
            row_keys: Optional[Dict[int, Tuple]] = None,
            forced: Dict[int, Dict[int, Any]] = {},
            greedy: bool = False
    ) -> Dict[int, Any]:
        """Sample an action for each environment, all in one batch, see ``Actor.sample``; for a language model, a whole
        completion. ``data``: observations by environment. ``row_keys``: (collect, group, row) by environment, from the
        group collector; None for other loops, whose rows get random numbers of their own until ``reset``. ``greedy``:
        choose the most probable token or action."""
        with memory_advice('sampling', f'Sample fewer rows at a time: lower env.collector_env_num, now {len(data)}.'):
            if greedy:
                return self.actor.sample(data)
            enough = self._cfg.group_size if self._cfg.collect.extra_rows > 0 else None
            keys = self._own_keys.of(data, self.age[1]) if row_keys is None else row_keys
            return self.actor.sample(data, keys, forced, enough, self.trees)

    def _process_transition(self, obs: Any, policy_output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        return with_token_rewards(self.actor.transition(obs, policy_output, timestep), timestep.info)

    def _get_train_sample(self, transitions: List[Any]) -> List[Dict[str, Any]]:
        """Fold the episodes of a group, each a list of transitions or all of them in one list, into one sample, see
        ``fold_group``. It has two more keys: ``equal``, see ``Advantage.equal``, and ``sampled_after``, the number of
        optimizer steps before sampling, unless each token has one."""
        episodes = whole_episodes(transitions) if isinstance(transitions[0], dict) else transitions
        sample = fold_group(episodes, self._cfg.collect.shared_start)
        equal = self._advantage.equal(Batch.of([sample]))
        return [{'sampled_after': self.age[1], **sample, 'equal': equal}]

    def advantages(self, samples: List[Dict[str, Any]]) -> List[Optional[torch.Tensor]]:
        """The advantages (G, ) of each group's rows, or their means over steps, for the collector's table. None with a
        critic, ``optimal_token_baseline`` or ``kl.in_reward``, which need the model and are computed in the update.
        """
        learn = self._cfg.learn
        if learn.advantage == 'gae' or learn.kl.in_reward or self._advantage.method == 'optimal_token_baseline':
            return [None for _ in samples]
        batch = Batch.of(samples)
        adv = self._advantage.of(batch)
        if adv.dim() == 2:
            adv = row_mean(adv, batch.weight)
        return list(adv.split([len(s['action']) for s in samples]))

    def _state_dict_collect(self) -> Dict[str, Any]:
        return dict(model=self.whole_model.state_dict())

    _state_dict_eval = _state_dict_collect

    def _reset_collect(self, data_id: Optional[List[int]] = None) -> None:
        for known in (self.actor, self._own_keys, self.trees):
            known.forget(data_id)

    def close(self) -> None:
        self.actor.close()

    def _init_eval(self) -> None:
        pass

    def _forward_eval(self, data: Dict[int, Any], row_keys: Optional[Dict[int, Tuple]] = None) -> Dict[int, Any]:
        """Choose the most probable token or action; with ``row_keys``, sample as in ``_forward_collect``."""
        with self.actor.evaluating():
            return self.actor.sample(data, row_keys)

    def _load_state_dict_eval(self, state_dict: Dict[str, Any]) -> None:
        self._load_weights(state_dict, dict(model=self._model.state_dict()))

    def _load_weights(self, state_dict: Dict[str, Any], own: Dict[str, Any]) -> None:
        check_content(state_dict, own, 'the checkpoint')
        with taking('the checkpoint'):
            self.actor.load_state_dict(state_dict)
        try:
            self._model.load_state_dict(state_dict['model'])
        except (KeyError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f'policy.model = {dict(self._cfg.model)!r:.300}: the checkpoint is of another model ({describe(error)})'
            ) from error
        if self._sharding is not None:
            self._sharding.gather()
        check_weights(self.whole_model, 'the checkpoint')

    def _reset_eval(self, data_id: Optional[List[int]] = None) -> None:
        with self.actor.evaluating():
            self.actor.forget(data_id)
