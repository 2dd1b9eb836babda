"""A critic on the rollouts of grpo: as spell_backward_grpo_config.py, with the value head's advantages."""
from easydict import EasyDict

group_size = 8
spell_backward_gae_config = dict(
    exp_name='runs/spell_backward_gae',
    env=dict(
        collector_env_num=32 * group_size,
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
        group_size=group_size,
        model=dict(pretrained='runs/spell_backward_sft/model'),  # output of python -m dizoo_llm.sft
        learn=dict(
            batch_size=32,
            learning_rate=2e-4,
            lr_scheduler=dict(type='linear', num_training_steps=100),
            clip_ratio=0.2,
            advantage='gae',
            gae_lambda=0.95,
            adv_method='batch',
        ),
        collect=dict(n_sample=32, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(spell_backward_gae_config)

spell_backward_gae_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(spell_backward_gae_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
