import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.tokenizer import build_word_tokenizer, load_tokenizer
from ding_common import ConfigError


@pytest.mark.unittest
class TestWordTokenizer:

    def test_think_answer_vocabulary(self):
        tokenizer = build_word_tokenizer(ThinkAnswerTask.words)
        assert isinstance(tokenizer, PreTrainedTokenizerFast) and len(tokenizer) == 32
        assert tokenizer.convert_tokens_to_ids(['0', '24', '<think>', '</think>', '<answer>', '</answer>']) == \
            [0, 24, 25, 26, 27, 28]
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (29, 30, 31)

    def test_every_sequence_of_ids_survives_decoding(self):
        tokenizer = build_word_tokenizer(ThinkAnswerTask.words)
        ids = list(range(32)) + [25, 25, 30, 0]
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids

    def test_encoding_adds_nothing(self):
        assert build_word_tokenizer(['a', 'b']).encode('b a') == [1, 0]

    def test_saved_and_loaded(self, tmp_path):
        tokenizer = build_word_tokenizer(['a', '<b>'])
        tokenizer.save_pretrained(tmp_path)
        for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))):
            assert loaded.encode('<b> a zzz') == [1, 0, 4] and loaded.eos_token_id == 2
            assert loaded.decode([1, 0]) == '<b> a'

    @pytest.mark.parametrize('words', [['a', 'a'], ['a b'], [''], ['<eos>']])
    def test_words_that_cannot_be_told_apart(self, words):
        with pytest.raises(ConfigError, match='env.tokenizer.words'):
            build_word_tokenizer(words)

    def test_folder_without_tokenizer(self, tmp_path):
        with pytest.raises(ConfigError, match='env.tokenizer.pretrained'):
            load_tokenizer(str(tmp_path))
