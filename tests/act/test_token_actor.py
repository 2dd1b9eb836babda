"""Rows of tokens: their random numbers, their observations, and the model that reads them."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.diagnose import tokenizer_notice
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_char_tokenizer, build_word_tokenizer, load_tokenizer
from tests.policies import OpenPolicy, Step, token_policy


@pytest.fixture
def obs():
    return TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]


class TestCollect:

    def test_a_rows_numbers_depend_on_its_key_alone(self, obs):
        policy = token_policy()
        forward = policy.collect_mode.forward
        one = forward({0: obs, 1: obs}, row_keys={0: (0, 0, 0), 1: (0, 0, 1)})
        policy.collect_mode.reset()
        two = forward({9: obs, 5: obs, 7: obs}, row_keys={9: (0, 0, 1), 5: (3, 0, 0), 7: (0, 0, 0)})
        assert one[0]['action'].tolist() == two[7]['action'].tolist()
        assert one[1]['action'].tolist() == two[9]['action'].tolist()
        assert len({tuple(o['action'].tolist()) for o in (one[0], one[1], two[5])}) == 3

    def test_a_rows_numbers_depend_on_the_runs_seed(self, obs, tiny_model):
        policies = [token_policy(seed=seed, model=tiny_model) for seed in (0, 1)]
        one, two = (policy.collect_mode.forward({0: obs}, {0: (0, 0, 0)})[0]['action'] for policy in policies)
        assert one.tolist() != two.tolist()

    def test_float_observations_of_the_evaluator_are_cast_back(self, obs):
        policy = token_policy()
        a = policy.eval_mode.forward({0: obs})[0]['action']
        b = policy.eval_mode.forward({0: torch.tensor(obs, dtype=torch.float32)})[0]['action']
        assert torch.equal(a, b) and a.dtype == torch.long

    def test_only_taken_tokens_are_learned(self):
        out = dict(prompt=torch.tensor([5]), action=torch.tensor([1, 2, 3]), logp=torch.zeros(3), kept=None)
        step = token_policy().collect_mode.process_transition(torch.tensor([5, -1]), out, Step(1., dict(taken=2)))
        assert step['action'].tolist() == [1, 2] and step['reward'].tolist() == [0, 1]

    def test_unbound_policy_says_what_is_missing(self):
        policy = OpenPolicy(token_policy().cfg)
        with pytest.raises(ConfigError, match="collector = dict\\(type='group'\\)"):
            policy.collect_mode.forward({0: torch.tensor([1, 2])}, row_keys={0: (0, 0, 0)})


class TestModel:

    def test_model_of_transformers_is_wrapped(self, tiny_model):
        assert token_policy(model=tiny_model.lm).model.lm is tiny_model.lm

    def test_other_models_are_refused(self):
        with pytest.raises(ConfigError, match='causal_lm'):
            token_policy(model=torch.nn.Linear(2, 2))

    @pytest.mark.parametrize(
        'spec, message', [
            (dict(vocab_size=33), 'env.tokenizer: its vocabulary of 33 tokens.*vocab_size = 32'),
            (dict(max_prompt_length=60), 'env.max_prompt_length = 60.*66 tokens.*64 positions'),
        ]
    )
    def test_tokens_that_do_not_fit_the_model(self, spec, message):
        policy = token_policy()
        with pytest.raises(ConfigError, match=message):
            policy.bind(type(policy.spec)(**dict(policy.spec._asdict(), **spec)))


class TestTokenizerNotice:

    def test_of_another_tokenizer_of_the_same_size(self, tmp_path):
        build_char_tokenizer('abc').save_pretrained(str(tmp_path))
        assert tokenizer_notice(str(tmp_path), build_char_tokenizer('abc')) is None
        notice = tokenizer_notice(str(tmp_path), build_char_tokenizer('acb'))
        assert 'env.tokenizer: 2 of its 6 tokens have other ids' in notice and str(tmp_path) in notice
        assert '3 of its 6 tokens' in tokenizer_notice(str(tmp_path), build_word_tokenizer(['x', 'y', 'z']))

    def test_a_run_shows_it(self, tiny_model, tmp_path, capsys):
        tiny_model.save_pretrained(str(tmp_path))
        words = ThinkAnswerTask.words
        for saved, shown in ((words, False), (words[::-1], True)):
            build_word_tokenizer(saved).save_pretrained(str(tmp_path))
            token_policy(base=tmp_path)
            assert ('of its 32 tokens have other ids' in capsys.readouterr().out) == shown

    def test_nothing_to_compare_with(self, tmp_path):
        assert tokenizer_notice(str(tmp_path), build_char_tokenizer('a')) is None
        assert tokenizer_notice('', build_char_tokenizer('a')) is None
        build_char_tokenizer('abc').save_pretrained(str(tmp_path))
        own = load_tokenizer(str(tmp_path))
        own.add_tokens(['more'])  # the model's own, with a token added
        assert tokenizer_notice(str(tmp_path), own) is None
