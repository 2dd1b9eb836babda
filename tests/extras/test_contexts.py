"""Contexts of a policy that teaches itself, on random rows: which ids its teacher reads, and which tokens count."""
from dataclasses import replace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from ding_grpo.data.batch import Batch
from ding_grpo.extras import teacher as teacher_module
from ding_grpo.rl_utils import exact_kl
from tests.cases import long
from tests.extras.test_self_teacher import BARE, ENV, Told, groups, taught, text
from tests.policies import change
from tests.runs import distance, state, train
from tests.shipped import small

SIZE, LONGEST = 4, 6  # rows of a group, tokens of a row


def random_rows(policy, number, seed=0):
    """Rows of any tokens, of which some are right, truncated or failed; the last token may be the end."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    batch = Batch.of(groups(policy)).take(torch.arange(number) % 8)
    action, length, row = draw(len(ENV.tokenizer), number, LONGEST), 1 + draw(LONGEST, number), torch.arange(number)
    # half of the rows are without a token that no text may have
    special = torch.isin(action, torch.tensor(ENV.tokenizer.all_special_ids)) & (draw(2, number, 1) > 0)
    action[special] = ENV.tokenizer.encode('7')[0]
    weight = (torch.arange(LONGEST) < length.unsqueeze(1)).float()
    ends = draw(2, number) == 1
    action[row[ends], length[ends] - 1] = ENV.tokenizer.eos_token_id
    empty = torch.zeros(number, LONGEST)
    return replace(
        batch,
        action=action,
        length=length,
        weight=weight,
        logp_old=empty,
        reward=empty,
        turn=empty.long(),
        group=row // SIZE,
        group_id=row // SIZE,
        row=row % SIZE,
        reward_parts=dict(solved=draw(2, number).float()),
        truncated=draw(4, number) == 0,
        failed=draw(8, number) == 0
    )


def said(batch, row):
    """The text of a row, without the end."""
    ids = batch.action[row, :batch.length[row]].tolist()
    return text(ids[:-1] if ids[-1] == ENV.tokenizer.eos_token_id else ids)


def readable(words):
    """Ids of a text; None with a token that no text may have."""
    ids = ENV.tokenizer.encode(words)
    return None if set(ids) & set(ENV.tokenizer.all_special_ids) else ids


@pytest.mark.parametrize('number', [400, long(10_000)])
def test_ids_and_masks_of_random_rows(number):
    told = Told()
    policy = taught(context=['sibling', 'reference', 'feedback'], policy=dict(group_size=SIZE))
    change(policy.model, 3.)
    batch, before = random_rows(policy, number), random_rows(policy, number)
    teacher = policy.terms['self_teacher']
    batch = teacher.prepare(batch, None)
    right = (batch.reward_parts['solved'] >= 1) & ~batch.truncated & ~batch.failed
    kinds = dict(sibling=0, reference=0, none=0)
    for row, context in enumerate(batch.context):
        first, problem = row // SIZE * SIZE, told.problem(int(batch.problem[row]))
        siblings = [said(batch, i) for i in range(first, first + SIZE) if right[i] and i != row]
        feedback = told.feedback(problem, said(batch, row))
        rest = f"{'' if feedback is None else feedback + ' '}{problem.prompt}"
        allowed = [readable(f'{shown} {rest}') for shown in siblings or [told.demonstration(problem)]]
        assert (None if context is None else context.tolist()) in allowed
        kinds['none' if context is None else 'sibling' if siblings else 'reference'] += 1
    assert min(kinds.values()) > number / 50

    for part in torch.arange(number).split(500):
        own = batch.take(part)
        known = torch.tensor([context is not None for context in own.context])
        contexts = [prompt if context is None else context for prompt, context in zip(own.prompts, own.context)]
        kl = exact_kl(*(_logits(policy.model, prompts, own) for prompts in (own.prompts, contexts))) * own.weight
        found = policy.read(own, teacher=teacher)
        for values in (found.divergence, found.teacher_kl):
            assert torch.allclose(values, kl, atol=2e-5)
            assert not values[own.weight == 0].any() and not values[~known].any()
        assert kl.sum() > 0.01 * own.weight[known].sum()
    assert torch.equal(batch.action, before.action) and torch.equal(batch.weight, before.weight)


def _logits(model, prompts, batch):
    """(B, S, V) of rows behind prompts, each from its start, padded on the right: these ids and no others."""
    ids = pad_sequence([torch.cat([p, a[:n]]) for p, a, n in zip(prompts, batch.action, batch.length)], True)
    with torch.no_grad():
        logits = model.lm(ids).logits
    place = torch.tensor([[len(p)] for p in prompts]) - 1 + torch.arange(batch.action.shape[1])
    place = place.clamp(max=logits.shape[1] - 1).unsqueeze(2).expand(-1, -1, logits.shape[2])
    return logits.gather(1, place)[:, :, :len(ENV.tokenizer)]


def test_a_run_with_a_mean_of_the_weights_is_resumed_bit_by_bit(own_folder):
    """Also of the mean itself, which its checkpoints hold."""
    for name, updates in (('whole', 4), ('part', 2), ('part', 4)):
        main, create = small('think_answer_grpo')
        main.policy.teacher = dict(BARE, self='ema', context=['sibling', 'reference'], update_rate=0.3)
        train((main, create), updates, name=name, learning_rate=1e-3, resume_training=True)
    whole, part = state(4, 'whole'), state(4, 'part')
    for key in ('model', 'self_teacher'):
        assert distance(whole[key], part[key]) == 0
    assert distance(whole['model'], whole['self_teacher']) > 1e-4


def test_tokens_with_the_same_states_have_one_divergence(monkeypatch):
    """Three different rows of a prompt: what is before their first tokens, after token 3, and after token 4."""
    policy, sizes = taught(policy=dict(group_size=SIZE)), []
    change(policy.model, 3.)
    whole = teacher_module.linear_divergence
    monkeypatch.setattr(
        teacher_module, 'linear_divergence', lambda own, *given: sizes.append(own.hidden.shape) or whole(own, *given)
    )
    batch = random_rows(policy, SIZE)
    batch.action[:, :2] = torch.tensor([[3, 2], [3, 5], [4, 6], [4, 6]])
    batch = replace(batch, length=torch.full((SIZE, ), 2), weight=(torch.arange(LONGEST) < 2).float().repeat(SIZE, 1))
    batch = policy.terms['self_teacher'].prepare(batch, None)
    found = policy.read(batch, teacher=policy.terms['self_teacher']).divergence
    kl = exact_kl(*(_logits(policy.model, prompts, batch) for prompts in (batch.prompts, batch.context)))
    assert [shape[:2] for shape in sizes] == [(1, 3)]
    assert torch.allclose(found, kl * batch.weight, atol=2e-5) and (found[:, :2] > 1e-3).all()
