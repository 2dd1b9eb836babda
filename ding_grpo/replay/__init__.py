"""A group sampled again from a checkpoint. A whole update again, compared stage by stage: ``ding_grpo.bisect``."""
