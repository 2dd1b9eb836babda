"""GRPO on rearrange: a policy that skips half of its steps learns from one reward at the end of all six."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

lengths = dict(max_new_tokens=31, max_prompt_length=18)
main_config = EasyDict(
    exp_name='runs/rearrange_grpo',
    env=dict(task=dict(type='rearrange'), n_evaluator_episode=128, stop_value=0.9, **lengths),
    policy=dict(
        group_size=16,
        model=dict(pretrained='runs/rearrange_sft/model'),  # of: python -m dizoo_llm.sft -c rearrange_sft
        learn=dict(batch_groups=16, learning_rate=1e-4, adv_method='no_std', clip=dict(ratio=0.2)),
        collect=dict(groups=32),
        eval=dict(evaluator=dict(eval_freq=5)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
