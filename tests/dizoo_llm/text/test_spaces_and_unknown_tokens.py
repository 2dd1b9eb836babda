"""Tokenizers as Llama 2's, which adds a space before a text, and OPT's, whose unknown token also begins it."""
import re

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.chat import encode_dialogue
from dizoo_llm.text.tokenizer import build_word_tokenizer, decode_after
from tests.tasks import Ask
from tools.chat_templates import Conversation, make_tokenizer


def llama2():
    """As Llama 2's: a space begins a word, and the decoder drops the first space of a text."""
    pieces = ['<unk>', '<s>', '</s>', '▁', '▁a', '▁b', 'a', 'b', '▁no', '<0x0A>']
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token='<unk>'))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace('▁', ' '),
         decoders.ByteFallback(),
         decoders.Fuse(),
         decoders.Strip(' ', 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<s>', eos_token='</s>', unk_token='<unk>')


@pytest.mark.envtest
class TestFirstSpaces:
    """The text of a completion is that of prompt and completion, less the prompt's."""

    @pytest.mark.parametrize('ids, text', [([4, 5], ' a b'), ([6, 5], 'a b'), ([3, 3, 7], '  b'), ([9, 4], '\n a')])
    def test_a_decoder_that_drops_one_drops_none_of_a_completion(self, tmp_path, ids, text):
        tokenizer = llama2()
        tokenizer.save_pretrained(str(tmp_path))
        env = TokenEnv(Ask('b'), tokenizer=dict(pretrained=str(tmp_path)), max_new_tokens=9)
        obs, _ = env.reset()
        *_, info = env.step([*ids, tokenizer.eos_token_id])
        prompt = obs[obs >= 0].tolist()
        assert info['completion'] == text
        assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, *ids])

    def test_nor_of_a_later_turn(self, tmp_path):
        llama2().save_pretrained(str(tmp_path))
        env = TokenEnv(
            Conversation('a', ['b', 'b']),
            tokenizer=dict(pretrained=str(tmp_path)),
            max_new_tokens=4,
            max_turns=2,
            max_reply_tokens=4
        )
        env.reset()
        env.step([4, 2])
        *_, info = env.step([5, 4, 2])
        assert [turn['text'] for turn in info['turns']] == [' a', ' b a']

    def test_nor_of_a_stop_string(self, tmp_path):
        llama2().save_pretrained(str(tmp_path))
        env = TokenEnv(Ask('b'), tokenizer=dict(pretrained=str(tmp_path)), max_new_tokens=9, stop=[' no'])
        env.reset()
        assert env.step([8, 4])[-1]['taken'] == 1

    def test_a_reward_model_reads_one_space(self):
        """The tokenizer adds a space before a text, which the completion has already."""
        tokenizer = llama2()
        assert tokenizer.encode(' b') == [3, 3, 7]
        assert encode_dialogue(tokenizer, 'a', ' b') == encode_dialogue(tokenizer, 'a', 'b') == [3, 6, 3, 7, 2]

    def test_words_made_here_have_no_space_before_them(self):
        tokenizer = build_word_tokenizer(['a', 'b'])
        assert decode_after(tokenizer, [0], [1, 0]) == decode_after(tokenizer, [], [1, 0]) == 'b a'
        assert decode_after(tokenizer, [0], []) == ''

    def test_a_character_that_ends_in_the_completion(self):
        tokenizer = make_tokenizer('')
        first, *rest = tokenizer.encode('é')
        assert decode_after(tokenizer, [first], [*rest, *tokenizer.encode('x')]).endswith('x')
        assert decode_after(tokenizer, tokenizer.encode('é'), tokenizer.encode('éx')) == 'éx'


@pytest.mark.envtest
class TestUnknownToken:
    """OPT's unknown token is also the one that begins a text, and that templates write."""

    def tokenizer(self, folder, begins):
        tokenizer = Tokenizer(models.WordLevel({'</s>': 0, 'a': 1, 'b': 2}, unk_token='</s>'))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if begins:
            tokenizer.post_processor = processors.TemplateProcessing(single='</s> $A', special_tokens=[('</s>', 0)])
        made = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token='</s>', eos_token='</s>', unk_token='</s>', pad_token='</s>'
        )
        if not begins:
            made.chat_template = '{% for m in messages %}</s> {{ m.content }} </s>{% endfor %}'
        made.save_pretrained(str(folder))
        return dict(tokenizer=dict(pretrained=str(folder)), max_new_tokens=9)

    @pytest.mark.parametrize('begins, wanted', [(True, [0, 1, 2]), (False, [0, 1, 2, 0])])
    def test_where_it_is_the_first_or_the_last_token_too(self, tmp_path, begins, wanted):
        options = self.tokenizer(tmp_path, begins)
        obs, _ = TokenEnv(Ask('a b'), **options).reset()
        assert obs[obs >= 0].tolist() == wanted
        for text in ('a c', 'c', 'c a'):
            with pytest.raises(ConfigError, match=rf"it has no token for \['c'\] in '{text}'"):
                TokenEnv(Ask(text), **options)

    def test_in_replies(self, tmp_path):
        options = dict(self.tokenizer(tmp_path, False), max_turns=2, max_reply_tokens=9)
        for reply, told in (('b', None), ('c', r"it has no token for \['c'\] in 'c'")):
            env = TokenEnv(Conversation('a', [reply, reply]), **options)
            env.reset()
            obs, *_, info = env.step([1, 0])
            if told is None:
                assert obs[obs >= 0].tolist() == [0, 1, 0, 1, 0, 0, 2, 0]
            else:
                assert re.search(told, info['failed'])
