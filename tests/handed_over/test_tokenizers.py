"""Tokenizers and their chat templates."""
import shutil
from functools import partial

import pytest

from dizoo_llm.envs import TokenEnv
from dizoo_llm.play import main as play
from dizoo_llm.text.chat import encode_prompt, encode_prompts
from dizoo_llm.text.tokenizer import build_word_tokenizer, decode_after, load_tokenizer
from tests.handed_over.helper import Case, change, check, name_of, of
from tests.tasks import Ask

pytestmark = [pytest.mark.envtest, pytest.mark.filterwarnings('ignore')]
WORDS, WORDS_CONFIG = 'tokenizer.json', 'tokenizer_config.json'


def tokenizer(text, *harms):
    """A tokenizer with a chat template, to which harm is done."""

    def make(folder):
        words = build_word_tokenizer(['a', 'b'])
        words.chat_template = text
        words.save_pretrained(folder)
        for harm in harms:
            harm(folder)

    return make


def without_words(folder):
    (folder / WORDS).unlink()


def multiplying(part, step, name=WORDS):
    """A tokenizer of which a part makes a text longer in sixty steps."""
    steps = dict(normalizer='normalizers', pre_tokenizer='pretokenizers', decoder='decoders')[part]

    def harm(folder):
        shutil.copy(folder / WORDS, folder / 'as-it-was.json')
        change(WORDS, **{part: {'type': 'Sequence', steps: [step] * 60}})(folder)
        if name != WORDS:  # which the other file names
            (folder / WORDS).rename(folder / name)
            (folder / 'as-it-was.json').rename(folder / WORDS)
            change(WORDS_CONFIG, fast_tokenizer_files=[name])(folder)

    return tokenizer(CONTENT, harm)


def ask(folder):
    encode_prompt(load_tokenizer(str(folder)), 'a b')


def ask_in_env(folder, **options):
    TokenEnv(Ask('a b'), tokenizer=dict(pretrained=str(folder)), max_new_tokens=2, **options)


def ask_several(folder):
    encode_prompts(load_tokenizer(str(folder)), ['a' * 24] * 2)


def decode(folder):
    decode_after(load_tokenizer(str(folder)), [], [0] * 24)


def talk(folder, text='a'):
    play.main([str(folder), text], standalone_mode=False)


CONTENT = '{{ messages[0].content }}'
TWICE = dict(type='Replace', pattern=dict(String='a'), content='aa')
BYTES = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=False)
CHARACTERS = dict(type='Precompiled', precompiled_charsmap='')
# A regular expression that is given up in the middle, by a panic.
SPLIT = dict(type='Split', pattern=dict(Regex='(a+)+$b'), behavior='Isolated', invert=False)
STEPS = [dict(type='Fuse'), dict(type='Replace', pattern=dict(Regex='(a+)+$b'), content='')]
panicking = of('model', change(WORDS, pre_tokenizer=SPLIT))
panicking_decoder = tokenizer(None, change(WORDS, decoder=dict(type='Sequence', decoders=STEPS)))
LONG = 'times as long, must be at most 1000 times'
PANIC = 'env.tokenizer: it fails (PanicException: '
LOOP = '{% for i in range(99999) %}' * 4 + '{% endfor %}' * 4
LATE = CONTENT + '{% if "a" in messages[0].content %}' + LOOP + '{% endif %}'
MACRO = '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}'
FOLDED = '{{ 10 ** (10 ** 9) }}'
SLOW = 'its chat template took more than 1 s'
NAMES = 'must be names of files in the folder'
TEMPLATES = [
    ('a template', CONTENT, ''),
    ('a template that loops', LOOP, SLOW),
    ('a template that loops for some chats', LATE, SLOW),
    ('a template that calls itself', MACRO, SLOW),
    ('a template that computes when it is compiled', FOLDED, SLOW),
    ('a template with a long number', '{{ 10 ** (10 ** 5) }}', 'ValueError: Exceeds the limit'),
    ('a template of many levels', '{% if 1 %}' * 3000 + '{% endif %}' * 3000, 'RecursionError: maximum recursion'),
    ('a template that fills the memory', '{{ messages[0].content * 10 ** 10 }}', 'MemoryError'),
    ('a template that writes much', '{{ "a" * 10 ** 7 }}', 'answers with more than 1,00'),
]
OPTIONS = [
    ('a template with an option', CONTENT + '{% if date %}{% endif %}', ''),
    ('a template that loops, with an option', FOLDED + '{{ date }}', SLOW),
    ('a template that cannot be read, with an option', '{% if date %}', 'TemplateSyntaxError'),
]
TOKENIZERS = [
    *(Case(name, tokenizer(text), ask, told) for name, text, told in TEMPLATES),
    Case('a template that loops for some chats, in an environment', tokenizer(LATE), ask_in_env, SLOW),
    *(
        Case(name, tokenizer(text), partial(ask_in_env, chat_options=dict(date='now')), told)
        for name, text, told in OPTIONS
    ),
    Case('a template that loops, in play', of('model', tokenizer(FOLDED)), talk, SLOW),
    Case('a normalizer that doubles a text', multiplying('normalizer', TWICE), ask, LONG),
    Case('the same by another name', multiplying('normalizer', TWICE, 'tokenizer.4.0.0.json'), ask, LONG),
    Case('a decoder that doubles a text', multiplying('decoder', TWICE), ask, LONG),
    Case('bytes that become two', multiplying('pre_tokenizer', BYTES), ask, LONG),
    Case('characters that become others', multiplying('normalizer', CHARACTERS), ask, LONG),
    Case('a regular expression that takes long', panicking, partial(talk, text='a' * 24), PANIC),
    Case('the same for several texts', panicking, ask_several, PANIC),
    Case('the same in a decoder', panicking_decoder, decode, PANIC),
    Case(
        'a tokenizer of another folder',
        tokenizer(CONTENT, change(WORDS_CONFIG, fast_tokenizer_files=['../outside/tokenizer.1.json'])), ask, NAMES
    ),
    Case(
        'a tokenizer of a file outside',
        tokenizer(CONTENT, without_words, change(WORDS_CONFIG, gguf_file='../outside/tiny.gguf')), ask, NAMES
    ),
]


@pytest.mark.parametrize('case', TOKENIZERS, ids=name_of)
def test_what_is_handed_over(case, handed):
    check(case, handed)
