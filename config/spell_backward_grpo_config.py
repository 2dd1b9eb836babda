"""GRPO on spell_backward: from reward alone, a small language model outperforms its careless teacher."""
from easydict import EasyDict
from ding_grpo.entry import complete, run

words = dict(min_word_len=5, max_word_len=7)
weights = dict(score=0.0, right=1.0)
task = dict(type='reasoning_gym', name='spell_backward', config=words, eval_size=512, weights=weights)
main_config = EasyDict(
    exp_name='runs/spell_backward_grpo',
    env=dict(task=task, n_evaluator_episode=512, stop_value=1.0, max_new_tokens=12, max_prompt_length=64),
    policy=dict(
        group_size=8,
        model=dict(pretrained='runs/spell_backward_sft/model'),  # output of python -m dizoo_llm.sft
        learn=dict(
            batch_groups=32,
            learning_rate=2e-4,
            lr_scheduler=dict(type='linear', num_training_steps=100),
            adv_method='no_std',
            clip=dict(ratio=0.2),
        ),
        collect=dict(groups=32),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
