"""A critic on the rollouts of grpo, on BipedalWalker-v3 (needs the extra box2d)."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

grpo, _ = shipped_config('bipedalwalker_grpo')
main_config, create_config = shipped_config('lunarlander_gae')
main_config.exp_name = 'runs/bipedalwalker_gae'
main_config.env = grpo.env
main_config.policy.model.update(obs_shape=24, action_shape=4, action_space='continuous')
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
