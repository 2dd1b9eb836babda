"""What an update did to each token of its groups, as plain data for a file of JSON lines."""
from typing import Any, Dict, List, Optional, Tuple

import torch
from ding.worker import LearnerHook
from torch import Tensor

from ding_common import append_json
from ding_grpo.data.batch import Batch
from ding_grpo.learn.observer import Observer, View
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import log_file


class TokenRecord(Observer):
    """Records every ``instruments.tokens_every``-th update. ``records`` are those of the last update, if it was due."""

    def __init__(self, view: View) -> None:
        self._every, self._actor, self._updater = view.cfg.instruments.tokens_every, view.actor, view.updater
        self._read: Optional[Tuple[Batch, Dict[str, Tensor]]] = None  # rows before the update, if it is due
        self.records: List[Dict[str, Any]] = []

    def hooks(self) -> List[LearnerHook]:
        return [CallHook('tokens', 15, position='after_iter', function=self._write)]

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        self._read = None
        if update % self._every == 0:
            logp, entropy = self._updater.read_with_entropy(batch)
            self._read = batch, dict(logp=logp, entropy=entropy)
        return {}

    def after(self, new: Batch, learned: Batch, metrics: Dict[str, float]) -> None:
        self.records = []
        if self._read is not None:
            batch, read = self._read
            tokenizer = None if self._actor.spec is None else self._actor.spec.tokenizer
            self.records = records_of(batch, learned, dict(read, logp_new=self._updater.read(batch)), tokenizer)

    def _write(self, engine: 'BaseLearner') -> None:  # noqa
        """Append the records to ``log/learner/tokens.jsonl``, one line per group."""
        for record in self.records if engine.rank == 0 else []:
            append_json(log_file(engine, 'tokens.jsonl'), dict(train_iter=engine.last_iter.val, **record))


def records_of(batch: Batch, learned: Batch, read: Dict[str, Tensor], tokenizer: Optional[Any]) -> List[Dict[str, Any]]:
    """
    Overview:
        One record for each group, after the update.
    Arguments:
        - batch (:obj:`Batch`): All rows.
        - learned (:obj:`Batch`): The rows that it learned from, with advantages.
        - read (:obj:`Dict[str, Tensor]`): Numbers of each step of the rows (B, S): ``logp`` and ``entropy`` before \
            the update, ``logp_new`` after it.
        - tokenizer (:obj:`Optional[Any]`): None for actions that are not tokens.
    Returns:
        - records (:obj:`List[Dict]`): ``group``, its number in its collect; ``collect_iter``, the number of updates \
            before it was collected; ``prompt``; and ``rows``. A row has ``row``, ``reward``, ``reward_parts``, \
            ``truncated``, ``failed`` and these lists over its steps: ``action`` (token ids), ``text``, ``logp_old`` \
            (of the sampler), ``logp``, ``entropy``, ``logp_new``, ``advantage`` (0 where nothing is learned), and \
            ``own``, False on tokens of the environment; of a tree also ``leader``, see ``tree_advantage``.
    """
    read = dict(read, advantage=_advantages(batch, learned))
    records = sampled(batch, tokenizer)
    for i, row in enumerate(row for record in records for row in record['rows']):
        row.update((name, _exact(x[i, :len(row['action'])])) for name, x in read.items())
    return records


def sampled(batch: Batch, tokenizer: Optional[Any]) -> List[Dict[str, Any]]:
    """The records of the groups of a batch, without what an update computes."""
    texts = _Texts(tokenizer)
    records: List[Dict[str, Any]] = []
    for i in range(len(batch)):
        n = int(batch.length[i])
        if batch.row[i] == 0:
            prompt = None if batch.prompts is None else texts.whole(batch.prompts[i].tolist())
            records.append(
                dict(group=int(batch.group_id[i]), collect_iter=int(batch.collect_iter[i]), prompt=prompt, rows=[])
            )
        action = batch.action[i, :n].tolist()
        before = None if batch.prompts is None else batch.prompts[i].tolist()[-1]
        records[-1]['rows'].append(
            dict(
                row=int(batch.row[i]),
                reward=_exact(batch.reward[i].sum()),
                reward_parts={name: _exact(part[i])
                              for name, part in batch.reward_parts.items()},
                truncated=bool(batch.truncated[i]),
                failed=bool(batch.failed[i]),
                action=action,
                text=texts.pieces(action, before),
                own=(batch.weight[i, :n] != 0).tolist(),
                logp_old=_exact(batch.logp_old[i, :n]),
                **({} if batch.leader is None else dict(leader=batch.leader[i, :n].tolist())),
            )
        )
    return records


def _advantages(batch: Batch, learned: Batch) -> Tensor:
    """Advantages (B, S) of all rows of a batch; 0 where nothing was learned."""
    advantage = torch.zeros_like(batch.logp_old)
    place = {key: i for i, key in enumerate(zip(batch.group.tolist(), batch.row.tolist()))}
    rows = [place[key] for key in zip(learned.group.tolist(), learned.row.tolist())]
    adv = learned.adv if learned.adv.dim() == 2 else learned.adv.unsqueeze(1)
    advantage[rows, :learned.weight.shape[1]] = torch.where(learned.weight != 0, adv, 0)
    return advantage


def _exact(x: Tensor) -> Any:
    """The numbers of a float32 tensor in nine digits, which determine every bit."""
    numbers = [float(f'{number:.9g}') for number in x.flatten().tolist()]
    return numbers if x.dim() else numbers[0]


class _Texts:
    """Texts of single tokens, such that those of a row join to the row's text; or of actions."""

    def __init__(self, tokenizer: Optional[Any]) -> None:
        self._tokenizer = tokenizer
        self._known: Dict[Any, str] = {}

    def whole(self, ids: List[int]) -> str:
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return self._known[key]

    def pieces(self, actions: List[Any], before: Optional[int]) -> List[str]:
        if self._tokenizer is None:
            return [' '.join(f'{x:.2f}' for x in a) if isinstance(a, list) else str(a) for a in actions]
        if getattr(getattr(self._tokenizer, 'backend_tokenizer', None), 'decoder', None) is None:
            before = None  # words, whose spaces are no text
        return [self._after(*pair) for pair in zip([before, *actions], actions)]

    def _after(self, before: Optional[int], token: int) -> str:
        """The text that a token adds after another one: decoders drop or insert spaces between tokens."""
        alone = self.whole([token])
        if before is None:
            return alone
        first, both = self.whole([before]), self.whole([before, token])
        return both[len(first):] if both.startswith(first) else alone
