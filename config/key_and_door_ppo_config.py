"""DI-engine's token-level PPO on key_and_door: the game and the network of key_and_door_grpo_config.py."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('guess_ppo', 'runs/key_and_door_ppo', env_of='key_and_door_grpo')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
