from typing import Dict

from tensorboardX.proto.summary_pb2 import Summary


def add_scalars(tb_logger: 'SummaryWriter', scalars: Dict[str, float], step: int) -> None:  # noqa
    """Write all scalars of one step as one event. Each event passes through a queue between threads. At about sixty
    scalars per update, one event per scalar would take a noticeable part of a short update."""
    writer = getattr(tb_logger, 'file_writer', None)
    if writer is None:  # another kind of writer, or a closed one
        for tag, value in scalars.items():
            tb_logger.add_scalar(tag, value, step)
    else:
        values = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in scalars.items()]
        writer.add_summary(Summary(value=values), step)
