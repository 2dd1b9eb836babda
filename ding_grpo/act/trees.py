"""The trees of groups: where their rows divide, from a config, and how far they have while they are sampled."""
import re
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

from torch import Tensor

from ding_common import ConfigError, describe, import_name
from ding_grpo.data.row_generators import RowKey
from ding_grpo.rollout import Branching, Place, Tree, TreePlan

KEY = 'policy.collect.tree.at'
_SENTENCE = re.compile(r'[.!?\u3002\uff01\uff1f]["\')\]]*\s+$|\n\s*$')  # the end of what was said, and what follows


class Trees:
    """The trees of the groups that are being sampled."""

    def __init__(self, cfg: Dict[str, Any]) -> None:
        """``cfg``: the section ``policy.collect.tree``."""
        self._plan = TreePlan(tuple(cfg.branches), place_of(cfg)) if cfg.branches else None
        self.of_group: Dict[int, TreePlan] = {}  # of single groups, by their number in the collect
        self._trees: Dict[RowKey, Tree] = {}
        self._groups: Dict[int, RowKey] = {}  # by environment

    def branching(self, env_ids: Sequence[int], row_keys: Dict[int, RowKey], prompts: List[Tensor],
                  tokenizer: Any) -> Optional[Branching]:
        """That of the next turn of rows, from their keys and all their tokens so far; None if no group is a tree."""
        if self._plan is None and not self.of_group:
            return None
        lines: Dict[RowKey, Dict[int, int]] = {}  # of each group: the line of each row
        for line, env_id in enumerate(env_ids):
            key = row_keys[env_id]
            if len(key) < 3:
                raise ConfigError(
                    'policy.collect.tree: needs the group collector, which tells which rows are a group. Remove it.'
                )
            self._groups[env_id] = key[:2]
            lines.setdefault(key[:2], {})[key[2]] = line
        found = []
        for group, of_rows in lines.items():
            plan = self.of_group.get(group[1], self._plan)
            if group not in self._trees and plan is not None:
                start = len(prompts[min(of_rows.values())])
                self._trees[group] = Tree(plan, plan.begin(sorted(of_rows)), start)
            if group in self._trees:
                tree = self._trees[group]
                tree.turn += 1
                _check(tree, of_rows, prompts)
                found.append((tree, of_rows))
        return Branching(found, [row_keys[i][2] for i in env_ids], prompts, tokenizer.decode)

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """Drop the trees of groups whose episodes have ended; None for all."""
        for i in list(self._groups) if env_ids is None else env_ids:
            self._groups.pop(i, None)
        left = set(self._groups.values())
        self._trees = {group: tree for group, tree in self._trees.items() if group in left}


def ends_sentence(text: str) -> bool:
    """Whether a text ends with the end of a sentence and what separates it from the next one, or with a line."""
    return _SENTENCE.search(text) is not None


def place_of(cfg: Dict[str, Any]) -> Place:
    """Where rows divide, from the section ``policy.collect.tree``."""
    if cfg.at == 'tokens':
        return lambda point: point.tokens >= cfg.tokens[point.level]
    if cfg.at == 'turns':
        return lambda point: point.begins and point.turn > 0
    if cfg.at == 'entropy':
        return lambda point: point.since >= cfg.apart and point.entropy() >= cfg.above
    ends = ends_sentence if cfg.at == 'sentences' else partial(_asked, import_name(cfg.at, KEY), cfg.at)
    return lambda point: point.since >= cfg.apart and ends(point.text())


def _asked(function: Callable, name: str, text: str) -> bool:
    """What a user's function says of a text."""
    try:
        return bool(function(text))
    except Exception as error:  # a user's function may raise any exception
        raise ConfigError(f'{KEY} = {name!r}: the function failed ({describe(error)}) for {text[-40:]!r}.') from error


def _check(tree: Tree, lines: Dict[int, int], prompts: List[Tensor]) -> None:
    """Rows that are the same so far must have been answered equally."""
    for node in tree.nodes:
        told = [prompts[lines[row]].tolist() if row in lines else None for row in node.rows]
        if any(tokens != told[0] for tokens in told):
            raise ConfigError(
                f'policy.collect.tree: the environment answered the same turn of the rows {node.rows} of a group '
                'differently. A tree plays the turns before a place again in each environment, so what it answers must '
                'depend on the seed and the tokens only.'
            )
