"""DI-engine's token-level PPO on spell_backward: same task and model as spell_backward_grpo_config.py."""
from easydict import EasyDict

spell_backward_ppo_config = dict(
    exp_name='runs/spell_backward_ppo',
    env=dict(
        collector_env_num=256,
        evaluator_env_num=128,
        n_evaluator_episode=512,
        stop_value=1.0,
        task=dict(
            type='reasoning_gym',
            name='spell_backward',
            config=dict(min_word_len=5, max_word_len=7),
            eval_size=512,
            weights=dict(score=0.0, right=1.0),
        ),
        tokenizer=dict(pretrained='runs/spell_backward_sft/model'),
        max_new_tokens=12,
        max_prompt_length=64,
    ),
    policy=dict(
        cuda=False,
        action_space='discrete',
        model=dict(type='causal_lm_vac',
                   pretrained='runs/spell_backward_sft/model'),  # output of python -m dizoo_llm.sft
        recompute_adv=False,
        traj_len_inf=True,  # complete trajectories, since the reward arrives with the last token
        learn=dict(
            learner=dict(log_policy=False),  # or the layers of the model fill the screen
            epoch_per_collect=2,
            batch_size=512,
            learning_rate=2e-4,
            lr_scheduler=dict(epoch_num=100, min_lr_lambda=0.0),  # linear, over 100 collects
            value_weight=0.5,
            entropy_weight=0.0,
            clip_ratio=0.2,
            adv_norm=False,
            value_norm=False,
            ppo_param_init=False,  # it would reinitialise the model's weights
        ),
        collect=dict(n_sample=2048, discount_factor=1.0, gae_lambda=1.0),
        eval=dict(evaluator=dict(eval_freq=80)),  # counted in mini-batches; one collect gives 8
    ),
)
main_config = EasyDict(spell_backward_ppo_config)

spell_backward_ppo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='ppo'),
)
create_config = EasyDict(spell_backward_ppo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
