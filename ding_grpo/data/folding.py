"""A training sample: a group's episodes, folded into a plain dict, as DI-engine's buffers and checkpoints need."""
from typing import Any, Dict, List

import torch
from ding.utils.data import default_collate
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_common import ConfigError
from ding_grpo.rollout import KeptSets

from .batch import map_tensors
from .trajectories import divide_trajectories


def fold_group(episodes: List[List[Dict[str, Any]]], shared_start: bool = True) -> Dict[str, Any]:
    """
    Fold the G finished episodes of a group into one sample, so that neither a replay buffer nor different lengths
    can separate the group. Its fields are those of ``Batch`` of these names, for G rows; ``prompt`` once for all
    rows, ``baseline`` as a float. On tokens that the environment added between two turns ``weight`` and
    ``logp_old`` are 0, and ``kept`` and ``sampled_after`` are -1.

    Each transition, from ``Actor.transition``, has ``action``, ``logp``, ``reward``, ``done`` and, in the last one,
    ``truncated``, ``failed`` and perhaps ``baseline``. For tokens also ``prompt``, the tokens before the action,
    ``kept``, ``turn``, ``anchor`` (the state after it) and, in the last one, ``reward_parts``; for steps also
    ``obs`` and, in the last one, ``final_obs``. An episode of S steps that was recorded in arrays is one transition,
    with ``steps``, their number, and ``obs`` (S, *). With ``shared_start`` episodes must have the same start; prompts
    always must.

    An episode of tokens may have several trajectories, each with a prompt of its own: its transitions name theirs,
    ``trajectory``, and the last one may have ``rewards``, those of all transitions. Then each trajectory is a row, see
    ``divide_trajectories``; ``episode`` (R, ) is the number of the episode of each row, and ``prompts`` has theirs.
    """
    start = 'prompt' if 'prompt' in episodes[0][0] else 'obs'
    number = None
    if start == 'prompt' and any(t.get('trajectory') is not None for episode in episodes for t in episode):
        episodes, number = divide_trajectories(episodes)
    else:
        _check_starts(episodes, start, shared_start)
    rows = [_tokens(episode) if start == 'prompt' else _steps(episode) for episode in episodes]
    last = [episode[-1] for episode in episodes]

    def padded(key: str, value: float = 0) -> Tensor:
        return pad_sequence([row[key] for row in rows], batch_first=True, padding_value=value)

    sample = dict(
        action=padded('action'),
        logp_old=padded('logp'),
        weight=padded('weight'),
        length=torch.tensor([len(row['weight']) for row in rows]),
        turn=padded('turn', -1),
        reward=padded('reward'),
        reward_parts={
            name:
            torch.tensor([float('nan') if t['reward_parts'][name] is None else t['reward_parts'][name] for t in last])
            for name in last[0].get('reward_parts', {})
        },
        truncated=torch.tensor([float(t['truncated']) for t in last]),
        failed=torch.tensor([float(t['failed']) for t in last]),
    )
    if 'baseline' in last[0]:
        sample['baseline'] = last[0]['baseline']
    if number is not None:
        same: Dict[bytes, Tensor] = {}
        prompts = [episode[0]['prompt'] for episode in episodes]
        sample['prompts'] = [same.setdefault(prompt.numpy().tobytes(), prompt) for prompt in prompts]
        sample['episode'] = torch.tensor(number)
    if start == 'prompt':
        sample['prompt'], sample['anchor'] = episodes[0][0]['prompt'], _anchors(episodes)
    else:
        sample['obs'] = _observations([t for episode in episodes for t in episode])
        if 'final_obs' in last[0]:
            sample['final_obs'] = collate([t['final_obs'] for t in last])
    sample.update((key, padded(key, -1)) for key in ('kept', 'sampled_after', 'leader') if key in rows[0])
    if 'kept_words' in rows[0]:
        sample['kept_words'], sample['kept_width'] = torch.cat([r['kept_words'] for r in rows]), padded('kept_width')
    return sample


def whole_episodes(transitions: List[Dict[str, Any]]) -> List[List[Dict[str, Any]]]:
    """The episodes of one list of transitions, each of which ends with ``done``."""
    episodes: List[List[Dict[str, Any]]] = [[]]
    for transition in transitions:
        episodes[-1].append(transition)
        if transition['done']:
            episodes.append([])
    if episodes.pop():
        raise ConfigError(
            'get_train_sample: the last episode has not ended, and grpo compares whole episodes. Take the group '
            "collector (create_config.collector = dict(type='group')), the middleware of ding_grpo.framework, or the "
            'transitions of whole episodes.'
        )
    return episodes


def _check_starts(episodes: List[List[Dict[str, Any]]], start: str, shared_start: bool) -> None:
    """Raise a ``ConfigError`` if episodes that must have the same start have not."""
    first = [episode[0][start] for episode in episodes]
    if 'steps' in episodes[0][0]:
        first = [map_tensors(lambda x: x[0], obs) for obs in first]
    same = all(_equal(obs, first[0]) for obs in first)
    if not same and start == 'prompt':
        raise ConfigError(
            f'policy.collect.shared_start = {shared_start}: the episodes of a group start with different prompts; a '
            "group of texts has one prompt. The task's problem must depend on the seed only, and shared_start must be "
            'True.'
        )
    if not same and shared_start:
        raise ConfigError(
            'policy.collect.shared_start = True: the episodes of a group start differently with the same seed. The '
            "environment's reset must depend on its seed only; or set shared_start to False, to compare episodes from "
            'different starts.'
        )


def _steps(episode: List[Dict[str, Any]]) -> Dict[str, Tensor]:
    """A row of single steps, each a turn: action, logp, weight, reward and turn, each (S, ) or, for actions, (S, N)."""
    row = {key: torch.cat([t[key] for t in episode]) for key in ('action', 'logp', 'reward')}
    return dict(row, weight=torch.ones_like(row['logp']), turn=torch.arange(len(row['logp'])))


def _tokens(episode: List[Dict[str, Any]]) -> Dict[str, Tensor]:
    """A row of own tokens and replies: as ``_steps``, with what was kept if the sampling restricts the vocabulary."""
    parts: List[Dict[str, Tensor]] = []
    for step, following in zip(episode, [*episode[1:], None]):
        own = {key: step[key] for key in ('action', 'logp', 'reward')}
        own.update(weight=torch.ones_like(own['logp']), turn=torch.full_like(own['action'], step['turn']))
        if isinstance(step['kept'], KeptSets):
            own['kept_words'], own['kept_width'] = step['kept']
        elif step['kept'] is not None:
            own['kept'] = step['kept']
        own.update((key, step[key]) for key in ('sampled_after', 'leader') if step.get(key) is not None)
        parts.append(own)
        reply = step['prompt'][:0] if following is None else _reply(step, following)
        if len(reply):  # all zeros but action, turn and kept
            no_token = {key: x.new_zeros(len(reply), *x.shape[1:]) for key, x in own.items() if key != 'kept_words'}
            parts.append(dict(no_token, action=reply, turn=torch.full_like(reply, step['turn'])))
            parts[-1].update((key, no_token[key] - 1) for key in ('kept', 'sampled_after') if key in own)
            if 'leader' in own:  # a reply belongs to the turn before it
                parts[-1]['leader'] = own['leader'][-1:].expand(len(reply))
    return {key: torch.cat([part[key] for part in parts if key in part]) for key in parts[0]}


def _anchors(episodes: List[List[Dict[str, Any]]]) -> Tensor:
    """(G, T), see ``fold_group``. The first turn's state is the prompt."""
    numbers: Dict[Any, int] = {}
    rows = []
    for episode in episodes:
        states: List[Any] = [('prompt', *episode[0]['prompt'].tolist())]
        for before, step in zip(episode, episode[1:]):
            if step['turn'] != before['turn']:
                states.append(before['anchor'])
        rows.append(torch.tensor([-1 if s is None else numbers.setdefault(s, len(numbers)) for s in states]))
    return pad_sequence(rows, batch_first=True, padding_value=-1)


def _reply(step: Dict[str, Any], following: Dict[str, Any]) -> Tensor:
    """The tokens that the environment added after a step. Token ids are the record: none of them may change."""
    known, found = torch.cat([step['prompt'], step['action']]), following['prompt']
    if not torch.equal(found[:len(known)], known):
        same = min(len(found), len(known))
        place = next((i for i in range(same) if found[i] != known[i]), same)
        told = f'{int(known[place])} became {int(found[place])}' if place < same else 'it is missing'
        raise ConfigError(
            f"env.type: the environment changed token {place} of the observation after turn {step['turn']} ({told}). "
            'An observation must continue the one before it and the action: append token ids, and never encode the '
            'text again.'
        )
    return found[len(known):]


def _equal(a: Any, b: Any) -> bool:
    return all(_equal(a[k], b[k]) for k in a) if isinstance(a, dict) else torch.equal(a, b)


def _observations(transitions: List[Dict[str, Any]]) -> Any:
    obs = [t['obs'] for t in transitions]
    return map_tensors(lambda *parts: torch.cat(parts), *obs) if 'steps' in transitions[0] else collate(obs)


def collate(observations: List[Any]) -> Any:
    """A batch of observations, tensors or dicts of them. One of shape (1, ) keeps its column, without which no layer
    reads it; in a dict it loses it, as models for DI-engine expect."""
    return default_collate(observations, cat_1dim=isinstance(observations[0], dict))
