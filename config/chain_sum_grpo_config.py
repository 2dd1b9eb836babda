"""GRPO on sums of reasoning-gym: a small language model adds and subtracts, after a warm start."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('spell_backward_grpo', 'runs/chain_sum_grpo')
sums = dict(min_terms=2, max_terms=3, min_digits=1, max_digits=2)
task = dict(type='reasoning_gym', name='chain_sum', config=sums, eval_size=512)
main_config.env.update(task=task, max_new_tokens=8, max_prompt_length=96)
policy = main_config.policy
policy.model.pretrained = 'runs/chain_sum_sft/model'  # output of chain_sum_sft_config.py
policy.learn.lr_scheduler.num_training_steps = 200
policy.eval.evaluator.eval_freq = 25
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
