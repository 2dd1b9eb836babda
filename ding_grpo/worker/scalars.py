from typing import Dict

from tensorboardX.proto.summary_pb2 import Summary


def add_scalars(tb_logger: 'SummaryWriter', scalars: Dict[str, float], step: int) -> None:  # noqa
    """
    Overview:
        Write many scalars of one step as one event: each event goes through a queue between threads, which of some \
        sixty numbers an update is a noticeable part of a short update.
    Arguments:
        - tb_logger (:obj:`SummaryWriter`): TensorBoard writer of ``tensorboardX``.
        - scalars (:obj:`Dict[str, float]`): By tag.
        - step (:obj:`int`): Their place on the axis.
    """
    writer = getattr(tb_logger, 'file_writer', None)
    if writer is None:  # another kind, or closed
        for tag, value in scalars.items():
            tb_logger.add_scalar(tag, value, step)
    else:
        values = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in scalars.items()]
        writer.add_summary(Summary(value=values), step)
