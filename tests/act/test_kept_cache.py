"""Turns that continue a kept cache, against turns that read their whole conversation again."""
import copy

import pytest
import torch

from ding_grpo.act.kept_cache import KeptCache
from ding_grpo.data.batch import Batch
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.rollout import Sampling, generate
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.model.helper import CPU, tokens_read, uniform
from tests.policies import SETTINGS, Chatter, sample_dialogues, token_policy

LLAMA = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
WINDOW = dict(LLAMA, model_type='mistral', sliding_window=6, num_key_value_heads=2)
LEARNED = dict(model_type='gpt2', n_embd=32, n_layer=2, n_head=4, n_positions=64)  # positions end where rows do
BLOOM = dict(model_type='bloom', hidden_size=32, n_layer=2, n_head=4)  # cannot share prompts


def language_model(config=LLAMA, **options):
    torch.manual_seed(0)
    return CausalLM(config=dict(config, vocab_size=32), **options)


def touch(model):
    """The weights count as new ones, with the values that they had."""
    with torch.no_grad():
        next(model.parameters()).mul_(1)


def talk(setting, groups=4, model=LLAMA, kept=True, graphs=False):
    """A policy, what it sampled, and the number of tokens that each pass read; ``kept`` is False for turns that read
    their whole conversation again."""
    options, sampling = SETTINGS[setting]
    env, lm = TokenEnv(Chatter(), **options), language_model(model, cuda_graphs=graphs)
    lm = lm.to('cuda') if graphs else lm
    policy = token_policy(dict(group_size=8), sampling, model=lm, env=env)
    read = tokens_read(lm)
    if not kept:
        lm.lm.get_input_embeddings().register_forward_hook(lambda *args: touch(lm))
    return policy, sample_dialogues(policy, env, groups), read


def play(setting, **options):
    return talk(setting, **options)[1]


class TestKeptCache:

    @pytest.mark.parametrize(
        'model, setting', [
            (LLAMA, 'stop strings'), (LLAMA, 'budgets'), long(LLAMA, 'top-k'), (WINDOW, 'cut turns'), (LEARNED, 'plain')
        ],
        ids=lambda value: value if isinstance(value, str) else value['model_type']
    )  # yapf: disable
    def test_equals_reading_again(self, model, setting):
        policy, kept, _ = talk(setting, model=model)
        assert policy.model.shares_prompts
        for one, other in zip(kept, play(setting, model=model, kept=False)):
            assert torch.equal(one['action'], other['action']) and torch.equal(one['turn'], other['turn'])
            assert (one['logp_old'] - other['logp_old']).abs().max() <= 2e-6
        assert (Batch.of(kept).turn.amax(1) > 0).sum() > 10
        assert policy.learn_mode.forward(kept)['sampler_gap_max'] <= 2e-6

    def test_a_turn_reads_only_what_is_new(self):
        kept, again = (talk('cut turns', groups=1, kept=kept)[2] for kept in (True, False))
        # Without a cache, later turns read prompts and all turns again; with it, each call reads at most the last token
        # and a reply of at most 10 tokens of 8 lines.
        assert max(kept) <= 8 * 11 and sum(kept) < 0.7 * sum(again)

    def test_an_architecture_that_cannot_share_reads_again_and_says_so_once(self, capsys):
        policy, samples, _ = talk('plain', groups=2, model=BLOOM)
        assert not policy.model.shares_prompts
        assert capsys.readouterr().out.count('reads its whole conversation again') == 1
        assert policy.learn_mode.forward(samples)['sampler_gap_max'] <= 1e-5


class Conversations:
    """Rows that a model continues by three tokens in each turn, after one or more tokens of somebody else."""

    def __init__(self, model, prompts):
        self.model, self.cache, self.read = model, KeptCache(model), tokens_read(model)
        self.rows = [torch.tensor(prompt) for prompt in prompts]

    def turn(self, chosen, reply=()):
        """Returns the number of tokens of each pass."""
        rows = [torch.cat([self.rows[i], torch.tensor(reply).long()]) for i in chosen]
        start = self.cache.begin(chosen, rows)
        before = len(self.read)
        out = generate(start, PromptBatch.of(rows, CPU), 3, (), Sampling(), uniform(len(rows), 3), merge=False)
        self.cache.end(out.action, out.length)
        for i, row, action in zip(chosen, rows, out.action):
            self.rows[i] = torch.cat([row, action])
        return self.read[before:]


class TestConversations:

    @pytest.fixture
    def conversations(self):
        return Conversations(language_model(), [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6]])

    def test_a_row_that_was_changed_is_read_from_its_start(self, conversations):
        conversations.turn([0, 1, 2])
        conversations.rows[1][0] = 9
        conversations.cache.forget([2])
        assert conversations.turn([0, 1, 2], [7])[:2] == [2, 8 + 6]  # the first row goes on

    def test_a_reply_and_the_last_token_are_read_and_rows_of_other_environments_wait(self, conversations):
        assert conversations.turn([0, 1, 2]) == [4 + 2, 3, 3]
        conversations.turn([2], [7])
        assert conversations.turn([0, 1, 2], [7, 8]) == [3 * 3, 3, 3]

    @pytest.mark.parametrize('by', ['in place', 'autocast'])
    def test_what_other_weights_or_another_arithmetic_read_is_not_continued(self, conversations, by):
        conversations.turn([0, 1, 2])
        if by == 'in place':
            touch(conversations.model)
            assert conversations.turn([0, 1, 2], [7]) == [8 + 8 + 6, 3, 3]
        else:
            with torch.autocast('cpu', torch.bfloat16):
                assert conversations.turn([0, 1, 2], [7]) == [8 + 8 + 6, 3, 3]


def test_an_update_forgets_what_old_weights_read():
    """Its optimizer is a fused one, whose steps torch does not count."""
    env, lm = TokenEnv(Chatter(), **SETTINGS['plain'][0]), language_model()
    samples = sample_dialogues(token_policy(model=copy.deepcopy(lm), env=env), env, 2)
    policy, read = token_policy(model=lm, env=env), tokens_read(lm)
    obs = {0: env.reset(seed=0, options=dict(index=4))[0]}
    out = policy.collect_mode.forward(obs, row_keys={0: (0, 0, 0)})
    obs = {0: env.step(out[0]['action'].numpy())[0]}
    policy.learn_mode.forward(samples)
    before = len(read)
    policy.eval_mode.forward(obs)
    assert read[before] == (obs[0] >= 0).sum() > 5 + len(out[0]['action'])
