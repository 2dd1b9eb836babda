"""
Move the weights of a trained model a part of the way back to its start: ``python -m dizoo_llm.interpolate FOLDER
--start NAME``. Such a model often generalises better than both ends, and keeps more of what the start could do
(WiSE-FT, arXiv:2109.01903; after reinforcement learning: WARP, arXiv:2406.16768).
"""
import os
from typing import Optional

import click
import torch
from transformers import PreTrainedModel

from ding_common import ConfigError
from ding_common.hub.language_model import build_causal_lm

from .text.tokenizer import load_tokenizer

SHARE = 0.2


@torch.no_grad()
def interpolate(model: PreTrainedModel, start: PreTrainedModel, share: float) -> PreTrainedModel:
    """Replace the weights of ``model`` by ``(1 - share) * model + share * start``, in place."""
    if not 0 <= share <= 1:
        raise ConfigError(f'--share = {share}: must be from 0 to 1.')
    weights, others = dict(model.named_parameters()), dict(start.named_parameters())
    for name in sorted({*weights, *others}):
        shapes = [tuple(w[name].shape) if name in w else 'none' for w in (weights, others)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f'--start: the weight {name} has the shape {shapes[0]} in the model and {shapes[1]} in the start, must '
                'be the same.'
            )
    for name, weight in weights.items():
        weight.lerp_(others[name].to(weight), share)
    return model


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.argument('folder', type=click.Path(exists=True, file_okay=False))
@click.option('--start', required=True, help='The model from which training started: policy.model.pretrained.')
@click.option('--gguf-file', help='policy.model.gguf_file, if the start has one.')
@click.option('--share', default=SHARE, show_default=True, type=click.FloatRange(0, 1), help='Share of the start.')
@click.option('--out', help='Folder to write; default is FOLDER with the suffix -interpolated.')
def main(folder: str, start: str, gguf_file: Optional[str], share: float, out: Optional[str]) -> None:
    """Write the model in FOLDER, moved a part of the way back to its start, as an ordinary folder of transformers."""
    out = out or f'{os.path.normpath(folder)}-interpolated'
    if os.path.exists(out):
        raise click.ClickException(f'--out = {out!r}: exists already')
    model = build_causal_lm(folder, None, 'float32', None, 'FOLDER')
    interpolate(model, build_causal_lm(start, None, 'float32', None, '--start', gguf_file), share)
    model.save_pretrained(out)
    load_tokenizer(folder).save_pretrained(out)
    click.echo(f'{1 - share:g} of {folder} and {share:g} of {start}: {out}')


if __name__ == '__main__':
    main()
