"""``policy.run``: how long a run lasts, and what it keeps."""
from ..key import COUNT, Key, optional

RUN = dict(
    # (Optional[int]) Updates after which the run ends, as with ``--train-iter`` on the command line; the smaller
    # number counts. None: it ends at ``env.stop_value`` or by the command line.
    num_updates=optional(COUNT),
    # (int) How many of the newest periodic checkpoints are kept, besides ckpt_best. The run deletes older ones,
    # also of ``learn.learner.hook.save_ckpt_after_iter``; raise it to keep them.
    keep_ckpt=Key(3, COUNT),
)
