"""Configs for what ``GRPO`` is given: texts and rewards, a registered task, or an environment of gymnasium."""
from typing import Any, Dict, List, Optional, Tuple, Union

import click
import gymnasium
from ding.utils import ENV_REGISTRY
from easydict import EasyDict
from gymnasium.spaces import Discrete, MultiDiscrete

from ding_common import ConfigError, config_errors
from ding_common.config.config_file import shipped_config, shipped_configs

from .sources import SCRIPT

Configs = Tuple[EasyDict, EasyDict]
NEVER = 1e9  # a return that no evaluation reaches
FEW = 50  # held-out problems of which the uncertainty is told
# Learning rates of texts, by what is trained.
RATES = {'pretrained weights': 1e-5, 'adapters': 1e-4, 'random weights': 3e-4}
_SMALL = dict(model_type='llama', hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)


def of_texts(task: Union[str, Dict[str, Any]], model: Dict[str, Any]) -> Tuple[Configs, str]:
    """Configs for a task, or its name, and a language model; and a line about the defaults."""
    task = dict(type=task) if isinstance(task, str) else task
    kind = 'adapters' if model.get('lora') else 'pretrained weights' if 'pretrained' in model else 'random weights'
    learn = dict(
        learning_rate=RATES[kind],
        loss='dapo',
        adv_method='no_std',
        lr_scheduler=dict(type='constant_with_warmup', num_warmup_steps=5),
    )
    tokens = 64 if kind == 'random weights' else 256
    if kind == 'random weights' and 'config' not in model:
        model = dict(model, config=dict(_SMALL, max_position_embeddings=1024))
    main_config = EasyDict(
        env=dict(task=task, max_new_tokens=tokens, stop_value=NEVER),
        policy=dict(
            group_size=8,
            model=model,
            learn=dict(learn, batch_groups=8),
            collect=dict(groups=8),
            eval=dict(evaluator=dict(eval_freq=10)),
        ),
    )
    told = f'defaults for {kind}, where you set no other: learning_rate {RATES[kind]:g} after 5 updates of warm-up, ' \
           f"loss 'dapo', 'no_std', 8 groups of 8 completions of at most {tokens} tokens"
    return (main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo'))), told


def hold_out(env: EasyDict) -> None:
    """Let a tenth of the problems, at most 128, be held out for evaluation, and say what is unusual about it."""
    number = len(ENV_REGISTRY.get('token_env').task_of(env))
    env.task.eval_size = held_out = min(128, number // 10)
    if held_out == 0:
        click.echo(f'{number} problems: evaluation uses the training problems, as there is no eval_data')
    elif held_out < FEW:
        error = 98 / held_out ** 0.5  # 1.96 standard errors of a share of one half
        click.echo(
            f'{held_out} of {number} problems are held out; their accuracy is uncertain by up to {error:.0f} points. '
            'Give eval_data or more data'
        )


def of_gymnasium(env_id: str, model: Dict[str, Any]) -> Tuple[Configs, str]:
    """
    The shipped config of an environment of gymnasium, or one by its spaces; and a line about it. ``model`` takes the
    place of its model, unless it is empty.
    """
    if not isinstance(env_id, str):
        raise ConfigError(
            f'GRPO(env={env_id!r:.80}): must be an id of gymnasium. Register yours: gymnasium.register(ID, YourClass).'
        )
    for name in sorted(shipped_configs()):
        if name.endswith('_grpo'):
            main_config, create_config = shipped_config(name)
            if main_config.env.get('env_id') == env_id:
                main_config.policy.model = EasyDict(model or main_config.policy.model)
                return (main_config, create_config), f'defaults for {env_id}: those of the config {name}'
    with config_errors(f'GRPO(env={env_id!r}): cannot be created', '.'), gymnasium.make(env_id) as env:
        observation, action, spec = env.observation_space, env.action_space, env.spec
    bar = spec.reward_threshold if spec is not None else None
    learn = dict(
        epoch_per_collect=10,
        batch_groups=2,
        learning_rate=5e-4,
        reduction='token',
        advantage='return_to_go',
        target_kl=0.01,
        grad_clip_value=0.5,
        clip=dict(ratio=0.2),
    )
    hidden = dict(encoder_hidden_size_list=[64, 64], actor_head_hidden_size=64, critic_head_hidden_size=64)
    main_config = EasyDict(
        env=dict(
            env_id=env_id,
            act_scale=not isinstance(action, Discrete),
            n_evaluator_episode=20,
            stop_value=NEVER if bar is None else float(bar),
        ),
        policy=dict(
            group_size=4,
            model=model or dict(**_shapes(env_id, observation, action), **hidden),
            learn=learn,
            collect=dict(groups=6, discount_factor=0.99),
            eval=dict(evaluator=dict(eval_freq=5)),
        ),
    )
    told = f'defaults for {env_id}: 6 groups of 4 episodes, learning_rate 0.0005, no config was tuned for it'
    create_config = EasyDict(env=dict(type='gymnasium_env'), policy=dict(type='grpo'))
    registers = _package_of(spec)
    if registers == SCRIPT:
        told += f'\nconfig.py alone cannot repeat this run: register {env_id} in a file, and import it'
    elif registers not in (None, 'gymnasium'):
        create_config.env.import_names = ['ding_grpo', registers]
    return (main_config, create_config), told


def of_this_script(env: EasyDict) -> bool:
    """Whether the script that runs registers the environment of gymnasium, so that no other program knows it."""
    return _package_of(gymnasium.registry.get(env.get('env_id'))) == SCRIPT


def _package_of(spec: Any) -> Optional[str]:
    """The package of an environment's class, which mostly registers it when it is imported."""
    made = getattr(spec, 'entry_point', None)
    module = made.partition(':')[0] if isinstance(made, str) else getattr(made, '__module__', None)
    return module and module.partition('.')[0]


def _shapes(env_id: str, observation: Any, action: Any) -> Dict[str, Any]:
    if isinstance(observation, Discrete):
        seen: Optional[int] = int(observation.n)
    else:
        shape: List[int] = list(getattr(observation, 'shape', None) or [])
        seen = shape[0] if len(shape) == 1 else 1 if shape == [] and hasattr(observation, 'low') else None
    if isinstance(action, MultiDiscrete):
        acts: Any = action.nvec.ravel().tolist()
    else:
        acts = int(action.n) if isinstance(action, Discrete) else (getattr(action, 'shape', None) or (None, ))[0]
    if seen is None or acts is None:
        raise ConfigError(
            f'GRPO(env={env_id!r}): there is no default model for observations {observation} and actions {action}. '
            "Give one: model=dict(obs_shape=..., action_shape=..., action_space='discrete')."
        )
    kind = 'discrete' if isinstance(action, (Discrete, MultiDiscrete)) else 'continuous'
    return dict(obs_shape=seen, action_shape=acts, action_space=kind)
