"""The record of every token of an update: what it says, and that it changes nothing."""
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ding_grpo.data.batch import Batch
from ding_grpo.instruments.token_record import records_of
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.policies import make_batch, sample_groups, token_policy, update, weights


def test_a_record_changes_no_weight():
    policies = [token_policy(instruments=dict(tokens_every=freq)) for freq in (None, 1)]
    for policy in policies:
        update(policy)
        update(policy)
    assert torch.equal(*map(weights, policies))


def test_a_record_has_what_the_update_did():
    policy = token_policy(instruments=dict(tokens_every=2))
    samples = sample_groups(policy, reward=lambda group, row: float(row < group + 1))
    batch = Batch.of(samples)
    reading = policy.read(batch)
    policy.learn_mode.forward(samples)
    after = policy.read(batch).logp
    records = policy.observers['tokens'].records
    assert [r['group'] for r in records] == [0, 1] and [len(r['rows']) for r in records] == [4, 4]
    for i, row in enumerate(row for record in records for row in record['rows']):
        n = int(batch.length[i])
        assert row['action'] == batch.action[i, :n].tolist() and row['own'] == [True] * n
        assert torch.equal(torch.tensor(row['logp_old']), batch.logp_old[i, :n])  # to the last bit
        for name, values in (('logp', reading.logp), ('entropy', reading.entropy), ('logp_new', after)):
            assert row[name] == pytest.approx(values[i, :n].tolist(), rel=1e-5)
        assert row['logp_new'] != pytest.approx(row['logp'], rel=1e-5)
        # words have the space that joins them
        assert ''.join(row['text']) == policy.spec.tokenizer.decode(row['action'])
    # no_std: rewards 1, 0, 0, 0 have the mean 1/4; rewards 1, 1, 0, 0 the mean 1/2
    advantages = [[row['advantage'][0] for row in record['rows']] for record in records]
    assert advantages == [[.75, -.25, -.25, -.25], [.5, .5, -.5, -.5]]
    update(policy)  # update 1 is not due
    assert policy.observers['tokens'].records == []


def test_rows_that_are_not_learned_from_have_advantage_0():
    policy = token_policy(instruments=dict(tokens_every=1), drop_equal_groups=True)
    samples = sample_groups(policy, reward=lambda group, row: float(group == 1 and row == 0))
    samples[1]['failed'][3] = 1
    policy.learn_mode.forward(samples)
    equal, other = policy.observers['tokens'].records
    assert [set(row['advantage']) for row in equal['rows']] == [{0.0}] * 4
    assert other['rows'][0]['advantage'][0] > 0 and set(other['rows'][3]['advantage']) == {0.0}
    assert other['rows'][3]['failed'] and not other['rows'][0]['failed']


def record_of(action, weight, tokenizer=None, prompts=None, **fields):
    batch = make_batch(weight, action=action, prompts=prompts, adv=torch.tensor([2.0] * len(weight)), **fields)
    return records_of(batch, batch, dict(logp=torch.zeros_like(batch.weight)), tokenizer)


def test_texts_of_tokens_join_to_the_text():
    tokenizer = build_char_tokenizer('abc ')
    ids = tokenizer.encode('ab c', add_special_tokens=False)
    record, = record_of(torch.tensor([ids]), torch.ones(1, 4), tokenizer, [torch.tensor(ids[:2])])
    assert record['prompt'] == 'ab' and record['rows'][0]['text'] == ['a', 'b', ' ', 'c']


def test_the_first_token_keeps_the_space_that_its_decoder_drops():
    """As Llama 2's: the texts of a row join to the completion."""
    backend = Tokenizer(models.WordLevel({'▁a': 0, '▁b': 1, '</s>': 2}, unk_token='</s>'))
    backend.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token='</s>')
    record, = record_of(torch.tensor([[1, 0]]), torch.ones(1, 2), tokenizer, [torch.tensor([0])])
    assert record['prompt'] == 'a' and record['rows'][0]['text'] == [' b', ' a']


def test_tokens_of_the_environment_are_not_own_and_have_advantage_0():
    tokenizer = build_char_tokenizer('ab')
    weight = torch.tensor([[1., 0., 1.]])
    fields = dict(length=torch.tensor([3]))
    record, = record_of(torch.tensor([[4, 5, 4]]), weight, tokenizer, [torch.tensor([4])], **fields)
    assert record['rows'][0]['own'] == [True, False, True] and record['rows'][0]['advantage'] == [2.0, 0.0, 2.0]


def test_rows_of_a_tree_say_whose_tokens_they_have():
    weight, length = torch.tensor([[1., 1., 1.], [1., 1., 0.]]), torch.tensor([3, 2])
    fields = dict(row=torch.arange(2), group=torch.zeros(2, dtype=torch.long), length=length)
    leader = torch.tensor([[0, 0, 0], [0, 1, -1]])
    tree, = record_of(torch.ones(2, 3, dtype=torch.long), weight, leader=leader, **fields)
    assert [row['leader'] for row in tree['rows']] == [[0, 0, 0], [0, 1]]
    plain, = record_of(torch.ones(2, 3, dtype=torch.long), weight, **fields)
    assert 'leader' not in plain['rows'][0]


@pytest.mark.parametrize('action, text', [([[1, 0]], ['1', '0']), ([[[.5, -1.]] * 2], ['0.50 -1.00'] * 2)])
def test_actions_that_are_not_tokens(action, text):
    record, = record_of(torch.tensor(action), torch.ones(1, 2))
    assert record['prompt'] is None and record['rows'][0]['text'] == text
