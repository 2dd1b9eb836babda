import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem, Task, ThinkAnswerTask
from dizoo_llm.text.chat import encode_prompt
from dizoo_llm.text.tokenizer import build_char_tokenizer, build_word_tokenizer, end_ids, load_tokenizer


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
        build_char_tokenizer('abc \n').save_pretrained(str(tmp_path / 'chars'))
        loaded = load_tokenizer(str(tmp_path / 'chars'))
        assert loaded.decode(loaded.encode('ab \nc')) == 'ab \nc'

    @pytest.mark.parametrize('words', [['a', 'a'], ['a b'], [''], ['<eos>']])
    def test_words_that_cannot_be_told_apart(self, words):
        with pytest.raises(ConfigError, match='env.tokenizer.words'):
            build_word_tokenizer(words)

    def test_folder_without_tokenizer(self, tmp_path):
        with pytest.raises(ConfigError, match='env.tokenizer.pretrained'):
            load_tokenizer(str(tmp_path))


@pytest.mark.unittest
class TestCharTokenizer:

    def test_texts_come_back(self):
        tokenizer = build_char_tokenizer('abc \n.')
        for text in ('', 'a', 'ab c\n\na.', '   ', 'cab.cab'):
            ids = tokenizer.encode(text)
            assert len(ids) == len(text) and tokenizer.decode(ids) == text
        assert len(tokenizer) == 9 and tokenizer.eos_token_id == 6 and tokenizer.encode('x') == [8]

    @pytest.mark.parametrize('chars', ['', 'aba'])
    def test_wrong_characters(self, chars):
        with pytest.raises(ConfigError, match='env.tokenizer.chars'):
            build_char_tokenizer(chars)


TEMPLATE = (
    '{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}'
    '{% if add_generation_prompt %}[a]{% endif %}'
)


class Ask(Task):
    weights = dict(right=1.0)

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem('ab', 'c')

    def score(self, problem, completion):
        return dict(right=float(completion == problem.answer))


@pytest.fixture
def chat(tmp_path):
    """A tokenizer with a chat template and, in its folder, a model's generation defaults."""
    tokenizer = build_char_tokenizer('abcdefghijklmnopqrstuvwxyz []')
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(tmp_path))
    GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, 3], do_sample=True, temperature=0.1, max_new_tokens=3
    ).save_pretrained(str(tmp_path))
    return load_tokenizer(str(tmp_path))


@pytest.mark.unittest
class TestPrompt:

    def text(self, tokenizer, *args, **kwargs):
        return tokenizer.decode(encode_prompt(tokenizer, *args, **kwargs))

    def test_chat_template_where_there_is_one(self, chat):
        assert self.text(chat, 'hi') == '[u]hi[a]'
        assert self.text(chat, 'hi', chat=False) == 'hi'
        assert self.text(chat, 'hi', system_prompt='be kind') == '[s]be kind[u]hi[a]'
        messages = [
            dict(role='user', content='hi'),
            dict(role='assistant', content='yes'),
            dict(role='user', content='no')
        ]
        assert self.text(chat, messages) == '[u]hi[a]yes[u]no[a]'
        with pytest.raises(ConfigError, match='env.chat = False: the prompts of env.task are chat messages'):
            self.text(chat, messages, chat=False)

    def test_without_one_a_text_is_a_text(self):
        tokenizer = build_char_tokenizer('abchi [u]')
        assert self.text(tokenizer, 'hi') == 'hi'
        for prompt, chat in (('hi', True), ([dict(role='user', content='hi')], None)):
            with pytest.raises(ConfigError, match='has no chat template'):
                encode_prompt(tokenizer, prompt, chat)

    def test_what_would_not_be_used_is_refused(self, chat):
        plain = build_char_tokenizer('hi')
        for tokenizer, options, message in (
            (plain, dict(system_prompt='s'),
             "env.system_prompt = 's': it would be ignored, since the tokenizer has no"),
            (plain, dict(chat_options=dict(a=1)), "env.chat_options = {'a': 1}: it would be ignored"),
            (chat, dict(system_prompt='s', chat=False), 'since env.chat is False'),
        ):
            with pytest.raises(ConfigError, match=message):
                encode_prompt(tokenizer, 'hi', **options)
        with pytest.raises(ConfigError, match='already have a system message'):
            encode_prompt(chat, [dict(role='system', content='a'), dict(role='user', content='b')], system_prompt='s')

    def test_what_a_tokenizer_lacks_is_told(self, chat):
        env = TokenEnv(Ask(), tokenizer=dict(chars='abc'), max_new_tokens=3)
        assert env.encode_answer('cc') == [2, 2, 3]
        with pytest.raises(ConfigError, match="env.tokenizer: it has no token for \\['x', '×'\\] in 'a×x'"):
            env.encode_answer('a×x')
        with pytest.raises(ConfigError, match="env.max_new_tokens = 3: the answer 'abc' has 4 tokens, including the"):
            env.encode_answer('abc')
        with pytest.raises(ConfigError, match='it has no token for'):
            TokenEnv(Ask(), tokenizer=dict(chars='bc'))

    def test_a_completion_is_decoded_as_it_was_written(self, chat, tmp_path):
        tokenizer = build_char_tokenizer('ab ,')
        tokenizer.clean_up_tokenization_spaces = True
        tokenizer.save_pretrained(str(tmp_path / 'tidy'))
        env = TokenEnv(Ask(), tokenizer=dict(pretrained=str(tmp_path / 'tidy')), max_new_tokens=4)
        env.reset()
        *_, info = env.step([0, 2, 3, 4])
        assert info['completion'] == 'a ,'

    def test_what_a_tokenizer_puts_around_a_text(self):
        tokenizer = build_char_tokenizer('abc')
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single='<unk> $A <eos>', special_tokens=[('<unk>', 5), ('<eos>', 3)]
        )
        assert encode_prompt(tokenizer, 'ab') == [5, 0, 1]  # before it, not behind it

    def test_several_ends_and_nothing_else_of_the_generation_defaults(self, chat, monkeypatch):
        assert end_ids(chat) == (chat.eos_token_id, 3)
        monkeypatch.chdir(chat.name_or_path)  # whose generation_config.json is not that of a tokenizer made here
        assert end_ids(build_char_tokenizer('abc')) == (3, )
        env = TokenEnv(Ask(), tokenizer=dict(pretrained=chat.name_or_path), max_new_tokens=9, chat=False)
        assert env.token_spec.eos_token_ids == (chat.eos_token_id, 3) and env.token_spec.max_new_tokens == 9
        env.reset(options=dict(index=0))
        *_, terminated, _, info = env.step([0, 1, 3, 2])
        assert terminated and info['taken'] == 3 and info['completion'] == 'ab'
