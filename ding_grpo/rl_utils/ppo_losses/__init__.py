"""
PPO with a KL to a pretrained policy, as in DI-engine's GitHub main but not in its release 0.5.3. It has the same names,
fields and losses. DI-engine's functions are wrong in four points. The second and the fourth are corrected by default; a
keyword corrects each of the others:

1. Means of the losses and of the KL divide by all positions, including padding. ``mask_loss=True`` excludes positions
   of weight 0, also from the KL, which DI-engine does not weight at all.
2. ``approx_kl`` and ``clipfrac`` count padding. Here they do not, as for GRPO and RLOO, because the content of padding
   says nothing about the policy. ``mask_metrics=False`` gives DI-engine's numbers.
3. Dual clip, https://arxiv.org/abs/1912.09729, is for negative advantages. The continuous form applies it to positive
   ones too, where it replaces the objective by its bound. ``dual_clip_negative=True`` does not.
4. A ratio that overflows its type makes gradients NaN. Here ratios are bounded, and the gradient is right.

With a ``log_prob_fn``, meant for language models, 1 is right by default too, and only an entropy bonus computes the
distribution over all tokens.

The data may be a namedtuple of this module or of DI-engine, or a plain tuple in the same order. ``logit_pretrained``
may be left out.
"""
