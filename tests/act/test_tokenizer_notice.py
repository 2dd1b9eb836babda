import pytest

from ding_grpo.act.token_actor import tokenizer_notice
from ding_grpo.model import CausalLM
from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_char_tokenizer, build_word_tokenizer, load_tokenizer

from tests.policies import make_policy


@pytest.mark.unittest
class TestNotice:

    def test_of_another_tokenizer_of_the_same_size(self, tmp_path):
        build_char_tokenizer('abc').save_pretrained(str(tmp_path))
        assert tokenizer_notice(str(tmp_path), build_char_tokenizer('abc')) is None
        notice = tokenizer_notice(str(tmp_path), build_char_tokenizer('acb'))
        assert 'env.tokenizer: 2 of its 6 tokens have other ids' in notice and str(tmp_path) in notice
        assert '3 of its 6 tokens' in tokenizer_notice(str(tmp_path), build_word_tokenizer(['x', 'y', 'z']))

    def test_a_run_shows_it(self, think_answer, capsys):
        main, create = think_answer
        CausalLM(config=dict(main.policy.model.config)).save_pretrained('base')
        words = ThinkAnswerTask.words
        main.policy.model = dict(pretrained='base')
        for saved, shown in ((words, False), (words[::-1], True)):
            build_word_tokenizer(saved).save_pretrained('base')
            make_policy(main, create)
            assert ('of its 32 tokens have other ids' in capsys.readouterr().out) == shown

    def test_the_models_own_with_a_token_added(self, tmp_path):
        build_char_tokenizer('abc').save_pretrained(str(tmp_path))
        own = load_tokenizer(str(tmp_path))
        own.add_tokens(['more'])
        assert tokenizer_notice(str(tmp_path), own) is None

    def test_nothing_to_compare_with(self, tmp_path):
        assert tokenizer_notice(str(tmp_path), build_char_tokenizer('a')) is None
        assert tokenizer_notice('', build_char_tokenizer('a')) is None
