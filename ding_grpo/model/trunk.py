from torch import nn
from transformers import PreTrainedModel


def trunk_of(lm: PreTrainedModel) -> nn.Module:
    """The model below its output layer."""
    if lm.base_model is not lm:
        return lm.base_model
    return next((m for m in lm.children() if isinstance(m, PreTrainedModel)), lm)  # under another name
