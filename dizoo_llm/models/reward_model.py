"""
Reward models: sequence-classification models of ``transformers`` whose output is a part of the reward. A config adds
them to any task, ``env.reward_models=[dict(pretrained='folder or name', weight=1.0)]``.
"""
import glob
import os
from functools import lru_cache
from typing import Any, Dict, List, Sequence, Tuple, Union

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ding_common import ConfigError, Rule, check_config, describe, parallel
from ding_common.hub.language_model import DTYPES, load_reward_model
from dizoo_llm.base import Problem
from dizoo_llm.text.chat import encode_dialogue
from dizoo_llm.text.tokenizer import ENCODING, load_tokenizer

KEY = 'env.reward_models'
DEFAULTS = dict(
    # (str) Folder or hub name of a model with one label and of its tokenizer.
    pretrained='',
    # (str) Name of the part of the reward. Several models need different names.
    name='reward_model',
    # (float) Weight of the part in the reward.
    weight=1.0,
    # (Optional[bool]) Whether prompt and completion become a dialogue in the chat template of the model's tokenizer.
    # None applies the template if the tokenizer has one.
    chat=None,
    # (int) Number of completions that the model reads at a time. Lower it when out of memory.
    batch_size=32,
    # (Optional[int]) Maximum number of tokens of prompt and completion. A longer one cannot be scored. None: as many as
    # the model has positions.
    max_length=None,
    # (str) float32, bfloat16 or float16.
    dtype='float32',
    # (str) Where the model computes, such as 'cpu' or 'cuda:0'.
    device='cpu',
    # (bool) Whether to subtract the mean of the completions of a collect and divide by their standard deviation. For
    # several parts of different scale; the weight then counts in standard deviations. Evaluations report scores as they
    # are. Not with several processes.
    whiten=False,
)
RULES = dict(
    pretrained=Rule('a folder or a hub name', lambda v: isinstance(v, str) and v != ''),
    name=Rule('a name', lambda v: isinstance(v, str) and v != ''),
    weight=Rule.number(),
    chat=Rule.one_of(True, False).or_none(),
    batch_size=Rule.integer(1),
    max_length=Rule.integer(1).or_none(),
    dtype=Rule.one_of(*DTYPES),
    device=Rule("a device of torch, such as 'cpu' or 'cuda:0'", lambda v: _is_device(v)),
    whiten=Rule.one_of(True, False),
)


class RewardModel:
    """Scores completions by a sequence-classification model, which a process loads once, at the first call."""

    def __init__(self, cfg: Dict[str, Any], key: str = KEY) -> None:
        check_config(cfg, DEFAULTS, RULES, key)
        self._cfg = {**DEFAULTS, **cfg}
        if not self._cfg['pretrained']:
            raise ConfigError(f"{key}.pretrained = '': must be {RULES['pretrained'].allowed}.")
        if self._cfg['whiten'] and parallel.world_size() > 1:
            raise ConfigError(
                f'{key}.whiten = True: not available with several processes, because each scores its own groups. Set '
                'it to False.'
            )
        self._key = key
        self.name, self.weight, self.whiten = self._cfg['name'], float(self._cfg['weight']), self._cfg['whiten']

    @torch.no_grad()
    def scores(self, problems: Sequence[Problem], completions: Sequence[str]) -> List[Union[float, Exception]]:
        """For each completion the model's output, or why it cannot be computed."""
        model, tokenizer = self._load()
        rows = [self._encode(tokenizer, model, *row) for row in zip(problems, completions)]
        scores: List[Union[float, Exception]] = list(rows)
        # by length, so that little is padded
        order = sorted((i for i, row in enumerate(rows) if isinstance(row, list)), key=lambda i: len(rows[i]))
        for begin in range(0, len(order), self._cfg['batch_size']):
            chosen = order[begin:begin + self._cfg['batch_size']]
            for i, score in zip(chosen, read_rows(model, [rows[i] for i in chosen]).tolist()):
                scores[i] = score
        return _whitened(scores) if self.whiten else scores

    def _load(self) -> Tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        folder = self._cfg['pretrained']
        # of the files, so that a model that is trained anew is loaded anew
        stamp = tuple(sorted((path, os.stat(path).st_mtime_ns) for path in glob.glob(os.path.join(folder, '*'))))
        return _load_once(folder, self._cfg['dtype'], self._cfg['device'], stamp, self._key)

    def _encode(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, problem: Problem,
                completion: str) -> Union[List[int], Exception]:
        try:
            with ENCODING:
                ids = encode_dialogue(tokenizer, problem.prompt, completion, self._cfg['chat'])
        except Exception as error:  # a chat template may raise anything for a text
            return ValueError(f'reward model {self.name!r}: the text could not be encoded ({describe(error)})')
        positions = getattr(model.config.get_text_config(), 'max_position_embeddings', None)
        most = min(n for n in (self._cfg['max_length'], positions, len(ids)) if n is not None)
        if len(ids) > most:
            return ValueError(f'reward model {self.name!r}: {len(ids)} tokens, more than {most}')
        return ids


@lru_cache(maxsize=8)
def _load_once(pretrained: str, dtype: str, device: str, stamp: Tuple,
               key: str) -> Tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        tokenizer = load_tokenizer(pretrained)
    except ConfigError as error:
        raise ConfigError(str(error).replace('env.tokenizer.pretrained', f'{key}.pretrained')) from error
    model = load_reward_model(pretrained, dtype, key)
    if model.config.num_labels != 1:
        raise ConfigError(
            f'{key}.pretrained = {pretrained!r}: the model has {model.config.num_labels} labels, a reward model has 1.'
        )
    model.config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    try:
        return model.to(device).eval(), tokenizer
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise ConfigError(f'{key}.device = {device!r}: not available ({describe(error)})') from error


def read_rows(model: PreTrainedModel, rows: List[List[int]]) -> torch.Tensor:
    """The outputs (B, ) of rows of token ids, padded on the right."""
    known = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids = pad_sequence(known, batch_first=True, padding_value=model.config.pad_token_id)
    mask = pad_sequence(list(map(torch.ones_like, known)), batch_first=True)
    logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits  # (B, 1)
    return logits[:, 0].float()


def _whitened(scores: List[Union[float, Exception]]) -> List[Union[float, Exception]]:
    known = torch.tensor([score for score in scores if not isinstance(score, Exception)], dtype=torch.float64)
    if len(known) == 0:
        return scores
    mean, std = known.mean().item(), known.std(unbiased=False).item()
    return [score if isinstance(score, Exception) else (score - mean) / (std + 1e-4) for score in scores]


def _is_device(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(torch.device(value))
    except RuntimeError:
        return False
