"""A critic on the rollouts of grpo, on Atari Breakout (extra atari): four images of 42 x 42, one life an episode."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_gae', 'runs/breakout_gae')
image = dict(screen_size=42, frame_skip=1, scale_obs=True, terminal_on_life_loss=True)
views = [dict(type='gymnasium.wrappers:AtariPreprocessing', kwargs=image)]
views.append('ding_grpo.envs:FireOnReset')
views.append(dict(type='gymnasium.wrappers:FrameStackObservation', kwargs=dict(stack_size=4)))
kwargs = dict(repeat_action_probability=0., max_episode_steps=1000)  # the environment repeats each action four times
main_config.env.update(env_id='ALE/Breakout-v5', env_kwargs=kwargs, gymnasium_wrappers=views)
main_config.env.update(collector_env_num=8, n_evaluator_episode=16, stop_value=5)
policy = main_config.policy
policy.model.update(obs_shape=[4, 42, 42], action_shape=4, encoder_hidden_size_list=[32, 64, 64, 128])
policy.model.update(actor_head_hidden_size=128, critic_head_hidden_size=128)
policy.learn.update(epoch_per_collect=4, learning_rate=1e-3, entropy=dict(weight=0.01))
policy.collect.groups = 64  # the first lives take about thirty steps each
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
