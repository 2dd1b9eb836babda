"""GRPO on two tasks at once with SmolLM2-135M-Instruct: sums and differences, and products of single digits."""
from easydict import EasyDict

group_size = 16
smollm2_mixture_grpo_config = dict(
    exp_name='runs/smollm2_mixture_grpo',
    env=dict(
        collector_env_num=16 * group_size,
        evaluator_env_num=152,
        n_evaluator_episode=152,  # all held-out problems of both
        stop_value=1.0,
        task=dict(
            type='mixture',
            parts=[
                dict(
                    type='arithmetic',
                    operations='+-',
                    low=1,
                    high=20,
                    train_high=25,
                    negative=False,
                    near=0.5,
                    examples=3,
                    eval_size=128,
                    weight=2,  # two of three problems
                ),
                dict(
                    type='reasoning_gym',
                    name='products',
                    config=dict(min_terms=2, max_terms=2, min_digits=1, max_digits=1),  # 100 problems
                    examples=3,
                    size=2000,
                    eval_size=24,
                    weights=dict(score=0.0, right=1.0),
                    weight=1,
                ),
            ],
        ),
        tokenizer=dict(pretrained='smollm2-135m-instruct'),
        max_new_tokens=4,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_size=8,
            learning_rate=2e-5,
            lr_scheduler=dict(type='polynomial', num_warmup_steps=4, num_training_steps=120, specific=dict(power=2.0)),
            clip_ratio=0.2,
            beta=0.0,
            entropy_weight=0.03,
            drop_equal_groups=True,
        ),
        collect=dict(n_sample=16, temperature=1.0),
        eval=dict(autocast=False, evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(smollm2_mixture_grpo_config)

smollm2_mixture_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(smollm2_mixture_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
