"""GRPO on FrozenLake in words: a tiny language model learns the way to the goal from any safe square."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('guess_grpo', 'runs/frozenlake_grpo')
maze = dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'], is_slippery=False)  # S: a start
lake = dict(type='gym_text', id='FrozenLake-v1', env_kwargs=maze, distinct=True)
# A turn is a word and its end. It is solved if the goal is reached from all eleven squares with greedy decoding.
main_config.env.update(task=lake, max_turns=10, max_reply_tokens=3)
policy = main_config.policy
policy.model.config.max_position_embeddings = 64
policy.learn.update(learning_rate=4e-4, entropy=dict(weight=0.005))
policy.collect.discount_factor = 0.9  # short ways are better
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
