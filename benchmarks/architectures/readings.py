"""
Log-probabilities of one architecture as this project learns and samples them, beside plain ``transformers``. Plain is
another model with the same weights that nothing of this project touches; it reads each row alone.
"""
import re
import traceback
from functools import lru_cache, partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.architectures.configs import config_of
from benchmarks.shared.rows import batch_of
from ding_common import ConfigError
from ding_common.hub.language_model import build_causal_lm
from ding_grpo.act.token_actor import TokenActor
from ding_grpo.config.sections.update import LOG_PROB_FNS
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rollout import Sampling, generate
from dizoo_llm.envs import TokenEnv

TYPES = ('float32', 'bfloat16', 'float16')
SCALES = (1, 4)  # of all matrices, against those of the start
TIMES = 4  # what the project's difference may be of the difference between two plain ways
FLOOR = 5e-6  # nats that two plain ways may always differ by
# In 16 bits also by what rounding the largest logit to the type changes: plain ``transformers`` rounds its logits.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2. ** -8, torch.float16: 2. ** -11}
# Sets of rows that two plain ways are compared on. In 16 bits rounding sends one token among hundreds to another
# expert; so before a line is wrong by its largest difference alone, more sets are read, also with the other attention.
SETS, MOST_SETS = 6, 240
IGNORES = 1e-3  # nats in float32 between two plain ways from which an architecture cannot be read padded

VOCABULARY, LONGEST, COMPLETION = 40, 12, 14
MIXED = dict(a=9, b=4, c=6, d=1, e=LONGEST)  # tokens of each distinct prompt
EQUAL = dict.fromkeys(MIXED, 9)  # which need no padding, and may be read otherwise
ROWS = 'aabcbdec'  # which prompt each row continues
LENGTHS = (14, 5, 14, 9, 1, 12, 14, 3)  # tokens that learning reads of each row
ENDS = (3, 4, 5, 6)  # a sampled row ends with one of these, so that rows leave the batch at different times


class Difference(NamedTuple):
    """
    Overview:
        Absolute difference of log-probabilities, in nats.
    """
    largest: float
    mean: float

    @classmethod
    def between(cls, one: List[Tensor], other: List[Tensor]) -> 'Difference':
        apart = torch.cat([(a.double() - b.double()).abs() for a, b in zip(one, other)])
        return cls(apart.max().item(), apart.mean().item())

    def or_more(self, other: 'Difference') -> 'Difference':
        """The larger one of both numbers."""
        return Difference(*map(max, self, other))

    def within(self, allowed: 'Difference') -> bool:
        """Whether neither number is above what is allowed, nor NaN."""
        return self.largest <= allowed.largest and self.mean <= allowed.mean

    def __str__(self) -> str:
        return f'{self.largest:.1e} (mean {self.mean:.0e})'


class Result(NamedTuple):
    """
    Overview:
        One architecture in one type at one scale of its weights. ``reading`` is how its rows are read, ``head`` why its
        output layer is refused (None: it is used), ``refused`` the words of a refusal, ``error`` the last line of a
        traceback, ``impossible`` why plain ``transformers`` itself cannot. ``learned`` and ``sampled`` are differences
        from plain, ``between`` from each other, ``plain`` from one plain way to another: rows padded on the left if
        ``padded``, else rows of equal length. ``allowed`` is what ``learned`` and ``sampled`` may be at most.
    """
    reading: Optional[str] = None
    head: Optional[str] = None
    refused: Optional[str] = None
    error: Optional[str] = None
    impossible: Optional[str] = None
    learned: Optional[Difference] = None
    sampled: Optional[Difference] = None
    between: Optional[Difference] = None
    plain: Optional[Difference] = None
    padded: bool = True
    allowed: Optional[Difference] = None

    @property
    def wrong(self) -> Optional[str]:
        """Why this is wrong, None if it is not."""
        if self.error is not None:
            return self.error
        for name, found in (('learned', self.learned), ('sampled', self.sampled)):
            if found is not None and not found.within(self.allowed):
                return f'{name} off by {found}, allowed {self.allowed}'
        return None


class Rows(NamedTuple):
    """
    Overview:
        Prompts with a completion each.
    """
    prompts: List[Tensor]
    completions: List[Tensor]

    @classmethod
    def given(cls, device: str, seed: int = 0, prompts: Dict[str, int] = MIXED) -> 'Rows':
        """Random rows: prompts that several rows continue, with completions of several lengths."""
        generator = torch.Generator().manual_seed(seed)
        draw = lambda n: torch.randint(3, VOCABULARY, (n, ), generator=generator).to(device)  # noqa: E731
        drawn = {name: draw(n) for name, n in prompts.items()}
        return cls([drawn[name] for name in ROWS], [draw(n) for n in LENGTHS])

    @property
    def whole(self) -> List[Tensor]:
        return [torch.cat(row) for row in zip(self.prompts, self.completions)]

    def picked(self, logits: List[Tensor]) -> List[Tensor]:
        """Of the logits of whole rows, the completions' log-probabilities."""
        found = []
        for prompt, completion, logit in zip(self.prompts, self.completions, logits):
            logp = logit[len(prompt) - 1:-1].float().log_softmax(-1)
            found.append(logp.gather(1, completion.unsqueeze(1)).squeeze(1))
        return found


def alone(lm: PreTrainedModel, whole: List[Tensor]) -> List[Tensor]:
    """Logits of each row by itself: what everything is compared with."""
    return [lm(ids[None], use_cache=False).logits[0] for ids in whole]


def padded(lm: PreTrainedModel, whole: List[Tensor]) -> List[Tensor]:
    """Of all rows together, padded on the left, with mask and positions."""
    longest = max(map(len, whole))
    ids = torch.stack([torch.cat([row.new_zeros(longest - len(row)), row]) for row in whole])
    mask = torch.stack([(torch.arange(longest) >= longest - len(row)).long() for row in whole]).to(ids.device)
    position = (mask.cumsum(1) - 1).clamp(min=0)
    logits = lm(ids, attention_mask=mask, position_ids=position, use_cache=False).logits
    return [logit[longest - len(row):] for logit, row in zip(logits, whole)]


def equal(lm: PreTrainedModel, whole: List[Tensor]) -> List[Tensor]:
    """Of each row with the others beside it, cut or repeated to its length: nothing is padded."""
    logits = []
    for number, row in enumerate(whole):
        ids = torch.stack([other.repeat(len(row) // len(other) + 1)[:len(row)] for other in whole])
        logits.append(lm(ids, use_cache=False).logits[number])
    return logits


class Plain:
    """
    Overview:
        ``transformers`` without this project, read in several ways.
    """

    def __init__(self, name: str, dtype: str, weights: Dict[str, Tensor], device: str) -> None:
        self._build = partial(_with_weights, name, dtype, weights, device)
        self._lm = self._build()
        self._others = [partial(padded if reads_padded(name) else equal, self._lm)]
        self.apart = Difference(0., 0.)  # the larger ones of all sets of rows
        self._logit = 0.0  # the largest
        self._device = device
        self._sets = 0
        while self._sets < SETS:
            self._read_another()

    @torch.no_grad()
    def read(self, rows: Rows) -> List[Tensor]:
        """Log-probabilities of completions, each row alone."""
        logits = alone(self._lm, rows.whole)
        found = rows.picked(logits)
        if not all(logp.isfinite().all() for logp in found):
            raise FloatingPointError('a log-probability is not finite')
        for other in self._others:
            self.apart = self.apart.or_more(Difference.between(found, rows.picked(other(rows.whole))))
        self._logit = max(self._logit, *(logit.abs().max().item() for logit in logits))
        return found

    def _read_another(self) -> None:
        self._sets += 1
        self.read(Rows.given(self._device, self._sets))

    def allowed(self, found: Difference) -> Difference:
        """What others may differ from it at most; ``found`` is what they do."""
        if self._lm.dtype != torch.float32:
            while found.mean <= self._allowed.mean and found.largest > self._allowed.largest and self._sets < MOST_SETS:
                if self._sets == SETS:
                    self._add_other_attention()
                self._read_another()
        return self._allowed

    def _add_other_attention(self) -> None:
        attention = 'eager' if self._lm.config._attn_implementation == 'sdpa' else 'sdpa'
        try:
            self._others.append(partial(alone, self._build(attention)))
        except ConfigError:  # the architecture has one attention only
            pass

    @property
    def _allowed(self) -> Difference:
        floor = max(FLOOR, ROUNDING[self._lm.dtype] * self._logit)
        return Difference(*(TIMES * max(number, floor) for number in self.apart))


def _with_weights(
        name: str,
        dtype: str,
        weights: Dict[str, Tensor],
        device: str,
        attention: Optional[str] = None
) -> PreTrainedModel:
    torch.manual_seed(0)
    lm = build_causal_lm(None, config_of(name), dtype, attention, name).eval().to(device)
    lm.load_state_dict(weights)
    return lm


@lru_cache
def reads_padded(name: str) -> bool:
    """Whether plain ``transformers`` gives rows padded on the left what it gives them alone, in float32."""
    torch.manual_seed(0)
    lm = build_causal_lm(None, config_of(name), 'float32', None, name).eval()
    scale_matrices(lm, max(SCALES))
    rows = Rows.given('cpu')
    with torch.no_grad():
        one, other = (rows.picked(way(lm, rows.whole)) for way in (alone, padded))
    return Difference.between(one, other).largest <= IGNORES


@torch.no_grad()
def scale_matrices(lm: torch.nn.Module, scale: float) -> None:
    for p in lm.parameters():
        if p.dim() > 1:
            p.mul_(scale)


def measure(name: str, dtype: str, scale: float = 1, device: str = 'cpu') -> Result:
    """
    Overview:
        Compare learned and sampled log-probabilities with plain ones.
    Arguments:
        - name (:obj:`str`): An architecture of ``architecture_configs``.
        - dtype (:obj:`str`): One of ``TYPES``.
        - scale (:obj:`float`): What all matrices are multiplied by.
        - device (:obj:`str`): Where it is computed.
    """
    found: Dict[str, Any] = {}
    try:
        torch.manual_seed(0)
        model = CausalLM(config=config_of(name), dtype=dtype).to(device)
        scale_matrices(model, scale)
        try:
            plain = Plain(name, dtype, model.lm.state_dict(), device)
        except Exception:  # transformers may raise anything, and so it cannot be compared with
            found['impossible'] = last_line()
        else:
            found['padded'] = reads_padded(name)
            _compare(model, plain, device, found)
    except ConfigError as error:
        found['refused'] = words(error)
    except Exception:  # and its line in the table says so
        found['error'] = last_line()
    return Result(**found)


def _compare(model: CausalLM, plain: Plain, device: str, found: Dict[str, Any]) -> None:
    found['head'] = head_refusal(model)
    log_prob_fn = LOG_PROB_FNS['linear_log_prob' if found['head'] is None else 'efficient_method']
    actor = TokenActor(model, Sampling(), log_prob_fn, seed=0)
    actor.bind(
        TokenEnv(max_new_tokens=COMPLETION
                 ).token_spec._replace(vocab_size=VOCABULARY, eos_token_ids=list(ENDS), max_prompt_length=LONGEST)
    )
    found['reading'] = reading_of(model)
    for prompts in (MIXED, EQUAL):
        rows = Rows.given(device, prompts=prompts)
        _add(found, plain, learned=Difference.between(_learned(actor, model, rows), plain.read(rows)))
        rows, sampled = _sampled(model, rows)
        _add(
            found,
            plain,
            sampled=Difference.between(sampled, plain.read(rows)),
            between=Difference.between(sampled, _learned(actor, model, rows)),
        )


def _add(found: Dict[str, Any], plain: Plain, **differences: Difference) -> None:
    for name, new in differences.items():
        found[name] = new.or_more(found.get(name, new))
    found['allowed'] = plain.allowed(found['learned'].or_more(found.get('sampled', found['learned'])))
    found['plain'] = plain.apart


def _sampled(model: CausalLM, rows: Rows) -> Tuple[Rows, List[Tensor]]:
    """Other completions of the rows' prompts, and the log-probabilities that sampling reports."""
    uniform = torch.rand(len(ROWS), COMPLETION, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    batch = PromptBatch.of(rows.prompts, model.device)
    rollout = generate(model, batch, COMPLETION, ENDS, Sampling(), uniform.to(model.device))
    lengths = rollout.length.tolist()
    return (
        rows._replace(completions=[action[:n] for action, n in zip(rollout.action, lengths)]),
        [logp[:n] for logp, n in zip(rollout.logp, lengths)],
    )


@torch.no_grad()
def _learned(actor: TokenActor, model: CausalLM, rows: Rows) -> List[Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    action = pad(rows.completions, batch_first=True)
    weight = pad([torch.ones_like(c, dtype=torch.float) for c in rows.completions], batch_first=True)
    logp = actor.read(model, batch_of(rows.prompts, action, weight)).logp
    return [line[:len(c)] for line, c in zip(logp, rows.completions)]


def head_refusal(model: CausalLM) -> Optional[str]:
    """Why learning cannot use the output layer itself, None if it can."""
    try:
        model.output_head()
    except ConfigError as error:
        return words(error)


def reading_of(model: CausalLM) -> str:
    """How it reads rows that continue a prompt."""
    return model.way


def words(error: BaseException, most: int = 200) -> str:
    """A refusal on one line of the table."""
    text = re.split(' Present: | Allowed: ', ' '.join(str(error).split()))[0].replace('|', '/')
    return text if len(text) <= most else f'{text[:most]} ...'


def last_line() -> str:
    """Of the traceback being handled."""
    lines = traceback.format_exc().strip().splitlines()
    return ' '.join(lines[-1].split())[:200].replace('|', '/')
