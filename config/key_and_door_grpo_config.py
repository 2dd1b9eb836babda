"""GRPO on key_and_door, as guess_grpo_config.py: a tiny language model learns to remember a colour over two turns."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('guess_grpo', 'runs/key_and_door_grpo')
main_config.env.update(task=dict(type='key_and_door'), max_reply_tokens=3)
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
