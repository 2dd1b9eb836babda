"""The tokens that a policy sampled are the tokens that it learns, whatever text they are."""
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ding_grpo.data.batch import Batch
from dizoo_llm import Reply
from dizoo_llm.envs import TokenEnv

from tests.policies import sample_dialogues, token_policy
from tests.tasks import Game

GROUPS, ROWS, TURNS = 10, 50, 4


class Talk(Game):
    """Repeats a part of each turn, so that a reply has pieces of texts that a policy wrote."""
    weights, prompts = dict(length=1.0), [f'{i:b}?' for i in range(5)]

    def respond(self, problem, state, turn):
        return Reply(turn.text[:3] + '10', dict(length=float(len(turn.text))))


def byte_pairs():
    """A small vocabulary of byte pairs, so that random tokens often join into others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [f'{i * i:b}?' for i in range(400)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=48, special_tokens=['<eos>']))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='<eos>')


def test_learned_ids_are_the_sampled_ids_with_byte_pairs(tmp_path):
    tokenizer, sampled = byte_pairs(), {}
    tokenizer.save_pretrained(str(tmp_path))
    options = dict(tokenizer=dict(pretrained=str(tmp_path)), stop=['?'])
    env = TokenEnv(Talk(), max_turns=TURNS, max_new_tokens=6, max_reply_tokens=8, **options)
    policy = token_policy(dict(group_size=ROWS, model=dict(config=dict(vocab_size=48))), env=env)
    sample = policy.actor.sample

    def noted(obs, row_keys, *args):
        output = sample(obs, row_keys, *args)
        for i in obs:
            sampled.setdefault(row_keys[i][1:], []).append((output[i]['prompt'], output[i]['action'].tolist()))
        return output

    policy.actor.sample = noted
    batch = Batch.of(sample_dialogues(policy, env, GROUPS))
    equal, cut, encoded_again = 0, 0, 0
    for line, (action, weight, turn) in enumerate(zip(batch.action, batch.weight, batch.turn)):
        of_row = sampled[divmod(line, ROWS)]
        for number, (read, ids) in enumerate(of_row):
            before = torch.cat([batch.prompts[line], action[:int((turn < number).logical_and(turn >= 0).sum())]])
            equal += torch.equal(before, read) and action[(turn == number) & (weight != 0)].tolist() == ids
            cut += ids[-1] != tokenizer.eos_token_id and '?' not in tokenizer.decode(ids)
            encoded_again += tokenizer.encode(tokenizer.decode(ids)) == ids
        assert int((weight != 0).sum()) == sum(len(ids) for _, ids in of_row) and int(turn.max()) == TURNS - 1
    total = GROUPS * ROWS * TURNS
    assert equal == total == 2_000
    assert encoded_again < 0.5 * total  # what decoding and encoding again would keep
    assert 0.1 * total < cut < 0.9 * total
    assert torch.equal(batch.length, (batch.turn >= 0).sum(1))
