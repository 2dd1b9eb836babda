"""A critic on the rollouts of grpo, on Atari Breakout (extra atari): one life, the last four images, of 42 x 42."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('cartpole_gae', 'runs/breakout_gae')
image = dict(screen_size=42, frame_skip=1, scale_obs=True, terminal_on_life_loss=True)  # four frames are one step
views = ['ding_grpo.envs:QuickReset', dict(type='gymnasium.wrappers:AtariPreprocessing', kwargs=image)]
views.append('ding_grpo.envs:PressFire')
views.append(dict(type='gymnasium.wrappers:StickyAction', kwargs=dict(repeat_action_probability=0.25)))
views.append(dict(type='gymnasium.wrappers:FrameStackObservation', kwargs=dict(stack_size=4)))
kwargs = dict(repeat_action_probability=0.0, max_episode_steps=2000)
main_config.env.update(env_id='ALE/Breakout-v5', env_kwargs=kwargs, gymnasium_wrappers=views)
main_config.env.update(collector_env_num=32, n_evaluator_episode=8, stop_value=3)
policy = main_config.policy
policy.model.update(obs_shape=[4, 42, 42], action_shape=4, encoder_hidden_size_list=[32, 64, 64, 128])
policy.model.update(actor_head_hidden_size=128, critic_head_hidden_size=128)
policy.collect.groups = 64
policy.learn.update(epoch_per_collect=4, learning_rate=1e-3, entropy=dict(weight=0.01))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
