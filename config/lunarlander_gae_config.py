"""A critic on the rollouts of grpo: as in cartpole_gae_config.py, on LunarLander-v3 (needs the extra box2d)."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_gae', 'runs/lunarlander_gae', env_of='lunarlander_grpo')
main_config.policy.learn.update(batch_groups=16, batch_steps=512, learning_rate=1e-3, entropy=dict(weight=0.01))
main_config.policy.collect.groups = 16
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
