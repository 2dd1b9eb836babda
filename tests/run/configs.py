"""Configs whose runs are stopped, broken and resumed: each option with a state that a checkpoint must contain."""
import gymnasium
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy
from ding.utils import MODEL_REGISTRY
from gymnasium.envs.classic_control import CartPoleEnv

from ding_grpo.model import CausalLM
from tests.dizoo_llm.agents.programs import write_tokenizer
from tests.shipped import small

LEARN = dict(epoch_per_collect=2, batch_groups=1, learning_rate=1e-3)
SAMPLES = dict(evaluator=dict(samples_per_start=2))
GUESSES = dict(
    task=dict(type='agent', run='tests.dizoo_llm.agents.programs:guesses', problems=[dict(secret=i) for i in range(4)]),
    tokenizer=dict(words=['guess', 'again', 'lower', 'higher', *map(str, range(4))]),
    **dict(max_prompt_length=2, max_turns=4, max_tokens=20, max_new_tokens=3),
)
CURRICULUM = dict(
    problem_order='pools',
    pools=dict(success_from=0.1, hard_to=0.2, hard_share=0.3),
    collector=dict(max_replacements=1, reward_range=(0.0, 0.9)),
    top_p=0.9,
    processors=[
        dict(type='min_p', p=0.01),
        dict(type='repetition_penalty', penalty=1.2),
        dict(type='logit_bias', bias=[(3, 0.5)]),
    ],
    extra_rows=4,
)


def tokens(learn={}, **policy):
    main, create = small('think_answer_grpo', policy=dict(policy, learn=dict(LEARN, **learn)))
    main.policy.learn.lr_scheduler = dict(type='linear', num_training_steps=30)
    return main, create


def steps(learn={}):
    env = dict(evaluator_env_num=3, n_evaluator_episode=7, env_kwargs=dict(max_episode_steps=25))
    return small('cartpole_grpo', env=env, policy=dict(learn=learn))


def lora(learn={}, **policy):
    """Adapters of a model in a folder."""
    main, create = tokens(learn, **policy)
    torch.manual_seed(0)
    CausalLM(config=dict(main.policy.model.config)).save_pretrained('base')
    adapters = dict(r=2, lora_alpha=4, target_modules=['q_proj', 'v_proj'], lora_dropout=0.0)
    main.policy.model = dict(pretrained='base', lora=adapters)
    return main, create


def critic():
    own = dict(config=dict(small('think_answer_grpo')[0].policy.model.config))
    return lora(dict(advantage='gae', adv_method=None, critic=dict(model=own, value_warmup=5, value_clip=0.2)))


def teacher():
    learn = dict(advantage='none', adv_method=None, distillation=dict(divergence='jsd'))
    return lora(dict(learn, demonstrations=dict(share=0.5)), teacher=dict(pretrained='base'))


def hybrid():
    own = dict(model_type='lfm2', num_key_value_heads=2, layer_types=['conv', 'full_attention'])
    return tokens(model=dict(config=own))


def buffer():
    other = dict(replay_buffer=dict(replay_buffer_size=8, max_use=3, max_staleness=6))
    main, create = tokens(dict(update_per_collect=2), other=other, random_collect_size=2)
    main.policy.learn.batch_groups, main.policy.transition_with_policy_data = 2, True
    return main, create


def stale():
    collect, instruments = dict(collector=dict(max_replacements=3), max_staleness=1), dict(tokens_every=2)
    learn = dict(off_policy=dict(correction='token'))
    return tokens(learn, collect=collect, instruments=instruments, eval=SAMPLES)


def turns():
    policy = dict(learn=dict(LEARN, advantage='anchor'), eval=SAMPLES)
    return small('key_and_door_grpo', policy=policy)


def agents():
    """Episodes with several texts, of an agent that asks by OpenAI's interface."""
    main, create = tokens(dict(trajectories='divided'), eval=SAMPLES)
    main.env.update(GUESSES)
    return main, create


def environments():
    """Episodes of an environment class, whose instances are used again."""
    main, create = tokens(eval=SAMPLES)
    write_tokenizer('chat')
    where, problems = 'tests.dizoo_llm.agents.environments', [dict(prompt='q', number=i) for i in range(4)]
    task = dict(type='environment', factory=f'{where}:Letters', problems=problems, reward=f'{where}:letters')
    limits = dict(max_prompt_length=99, max_turns=2, max_tokens=20, max_new_tokens=5)
    main.env.update(task=task, tokenizer=dict(pretrained='chat'), **limits)
    main.policy.model.config.update(vocab_size=101, max_position_embeddings=128)
    return main, create


class SeedsTorch(CartPoleEnv):
    """As one that builds a model or a renderer; the run's seed was then taken to be this one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        torch.manual_seed(7)


class Noisy(torch.nn.Module):
    """Batch norm, whose statistics are part of the weights, and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Dropout(0.1),
            torch.nn.Linear(16, 2)
        )

    def forward(self, x):
        return dict(logit=self.layers(x))


def noisy():
    gymnasium.register(id='SeedsTorch-v1', entry_point=SeedsTorch)
    MODEL_REGISTRY.register('noisy', Noisy, force_overwrite=True)
    main, create = steps(dict(kl=dict(beta=0.1, ref_sync_freq=2, ref_sync_mixup=0.5)))
    main.env.env_id, main.policy.model = 'SeedsTorch-v1', dict(type='noisy')
    return main, create


def memory():
    main, create = steps(dict(advantage='gae', extend_truncated=False))
    main.policy.model = dict(main.policy.model, type='recurrent_vac', memory='lstm')
    return main, create


REFERENCE = dict(kl=dict(beta=1, ref_sync_freq=3, ref_sync_mixup=0.5, target=1e-4, horizon=20))
RUNS = dict(
    tokens=tokens,
    reference=lambda: tokens(dict(REFERENCE, entropy=dict(weight=0, target=9.0))),
    curriculum=lambda: tokens(dict(adv_method='remax'), collect=CURRICULUM),
    hybrid=hybrid,
    replay_buffer=buffer,
    turns=turns,
    stale=stale,
    agents=agents,
    environments=environments,
    cartpole=steps,
    critic=critic,
    teacher=teacher,
    value_head=lambda: steps(dict(advantage='gae', extend_truncated=False, critic=dict(value_norm=True))),
    noisy=noisy,
    memory=memory,
)


def pipeline(name):
    return serial_pipeline if name == 'replay_buffer' else serial_pipeline_onpolicy
