"""DI-engine's PPO with a KL to its initial policy, to compare it with GRPO at equal ``beta``."""
import copy
from typing import Any, Dict, List

import torch
from ding.policy import PPOPolicy
from ding.policy.command_mode_policy_instance import DummyCommandModePolicy
from ding.policy.common_utils import default_preprocess_learn
from ding.rl_utils import gae, gae_data
from ding.torch_utils import to_device, to_dtype
from ding.utils import POLICY_REGISTRY, deep_merge_dicts, split_data_generator

from ding_common import ConfigError, Rule
from ding_grpo.config.key import value_at
from ding_grpo.config.moved import MOVED
from ding_grpo.learn.half_weights import check_trained
from ding_grpo.rl_utils import KL_TYPES, ppo_data, ppo_data_continuous, ppo_error, ppo_error_continuous

RULES = {'learn.kl.beta': Rule.number(0), 'learn.kl.type': Rule.one_of(*KL_TYPES)}


@POLICY_REGISTRY.register('ppo_kl')
class PPOKLPolicy(PPOPolicy):
    """DI-engine's ``ppo`` with the KL to a pretrained policy in the loss, which is ``policy_loss + value_weight *
    value_loss - entropy_weight * entropy_loss + beta * kl``. The pretrained policy is the model at the start of
    training. All other keys are those of ``ppo``. With ``kl.beta=0``, the trained weights are bit-identical to those of
    ``ppo``."""
    config = deep_merge_dicts(
        PPOPolicy.config,
        dict(
            type='ppo_kl',
            learn=dict(
                kl=dict(
                    # (float) Coefficient of the KL, as ``policy.learn.kl.beta`` of ``grpo``. 0: no reference.
                    beta=0.1,
                    # (str) Estimator of that KL: k1, k2 or k3, as ``policy.learn.kl.type`` of ``grpo``. 'k1' is the
                    # default of DI-engine's main branch. Its gradient is 0 in expectation under the policy that
                    # sampled, so that 'k2' or 'k3' is what keeps the policy near its start.
                    type='k1',
                ),
            ),
        )
    )

    def _init_learn(self) -> None:
        for old in ('beta', 'kl_type'):  # DI-engine ignores an unknown key
            if old in self._cfg.learn:
                raise ConfigError(f"policy.learn.{old} is policy.{MOVED[f'learn.{old}']} now.")
        for path, rule in RULES.items():
            value = value_at(self._cfg, path)
            if not rule.holds(value):
                raise ConfigError(f'policy.{path} = {value!r}: must be {rule.allowed}.')
        if self._cfg.action_space not in ('discrete', 'continuous'):
            raise ConfigError(
                f"policy.action_space = {self._cfg.action_space!r}: must be 'discrete' or 'continuous' with ppo_kl."
            )
        check_trained({name: p for name, p in self._model.named_parameters() if p.requires_grad})
        super()._init_learn()
        # After the initialisation, which may change the model's weights.
        self._reference = copy.deepcopy(self._model).requires_grad_(False) if self._cfg.learn.kl.beta > 0 else None

    def _forward_learn(self, data: List[Dict[str, Any]]) -> List[Dict[str, float]]:
        """Train on the mini-batches of all epochs as ``ppo`` does; returns its metrics and ``kl`` for each."""
        cfg = self._cfg.learn
        data = default_preprocess_learn(data, ignore_done=cfg.ignore_done, use_nstep=False)
        if self._cuda:
            data = to_device(data, self._device)
        for key in ('obs', 'next_obs'):
            if key in data:
                data[key] = to_dtype(data[key], torch.float32)
        self._learn_model.train()
        metrics = []
        for _ in range(cfg.epoch_per_collect):
            self._set_targets(data)
            for batch in split_data_generator(data, cfg.batch_size, shuffle=True):
                metrics.append(self._update(batch))
        if cfg.lr_scheduler is not None:
            self._lr_scheduler.step()
        return metrics

    def _set_targets(self, data: Dict[str, Any]) -> None:
        """Set the value's targets. With ``recompute_adv``, first recompute the advantages with the current value."""
        std = self._running_mean_std.std if self._value_norm else 1
        if self._recompute_adv:
            with torch.no_grad():
                value, next_value = (
                    self._learn_model.forward(data[key], mode='compute_critic')['value'] * std
                    for key in ('obs', 'next_obs')
                )
            traj_flag = data.get('traj_flag')
            data['value'] = value / std
            data['adv'] = gae(
                gae_data(value, next_value, data['reward'], data['done'], traj_flag), self._gamma, self._gae_lambda
            )
            returns = value + data['adv']
        else:
            returns = data['value'] * std + data['adv']
        data['return'] = returns / std
        if self._value_norm:
            self._running_mean_std.update(returns.cpu().numpy())

    def _update(self, batch: Dict[str, Any]) -> Dict[str, float]:
        cfg = self._cfg.learn
        output = self._learn_model.forward(batch['obs'], mode='compute_actor_critic')
        pretrained = None
        if self._reference is not None:
            with torch.no_grad():
                pretrained = self._reference.forward(batch['obs'], mode='compute_actor')['logit']
        adv = batch['adv']
        if self._adv_norm:
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        continuous = self._action_space == 'continuous'
        pack, error = (ppo_data_continuous, ppo_error_continuous) if continuous else (ppo_data, ppo_error)
        loss, info = error(
            pack(
                output['logit'], batch['logit'], batch['action'], output['value'], batch['value'], adv, batch['return'],
                batch['weight'], pretrained
            ),
            self._clip_ratio,
            kl_type=cfg.kl.type,
        )
        total = loss.policy_loss + self._value_weight * loss.value_loss - self._entropy_weight * loss.entropy_loss
        if self._reference is not None:
            total = total + cfg.kl.beta * loss.kl_div
        self._optimizer.zero_grad()
        total.backward()
        self._optimizer.step()
        shown = dict(
            total_loss=total,
            policy_loss=loss.policy_loss,
            value_loss=loss.value_loss,
            entropy_loss=loss.entropy_loss,
            kl=loss.kl_div,
            adv_max=adv.max(),
            adv_mean=adv.mean(),
            value_max=output['value'].max(),
            value_mean=output['value'].mean(),
        )
        if continuous:
            shown.update({f'{name}_mean': output['logit'][name].mean() for name in ('mu', 'sigma')})
            shown['act'] = batch['action'].float().mean()
        shown = {name: value.item() for name, value in shown.items()}
        return dict(shown, cur_lr=self._optimizer.param_groups[0]['lr'], **info._asdict())

    def _monitor_vars_learn(self) -> List[str]:
        return super()._monitor_vars_learn() + ['kl']


@POLICY_REGISTRY.register('ppo_kl_command')
class PPOKLCommandModePolicy(PPOKLPolicy, DummyCommandModePolicy):
    """``ppo_kl`` under the name that DI-engine's serial pipelines use."""
