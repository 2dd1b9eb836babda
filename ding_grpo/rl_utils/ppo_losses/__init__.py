"""
PPO with a KL to a pretrained policy, as in DI-engine's GitHub main but not in its release 0.5.3: the same names, fields
and losses, whose errors keywords correct (docs/reference/losses.md#rloo-and-ppo). The data may be a namedtuple of this
module or of DI-engine, or a plain tuple in the same order.

With a ``log_prob_fn``, meant for language models, only an entropy bonus computes the distribution over all tokens.
"""
