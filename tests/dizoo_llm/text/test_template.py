"""What users hand to chat templates, which another process renders: as ``apply_chat_template`` in this one."""
import datetime
import enum
import types

import pytest
from tokenizers import normalizers

from ding_common import ConfigError
from dizoo_llm.text import template
from dizoo_llm.text.chat import check_options, encode_prompt, encode_prompts
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.dizoo_llm.helper import CHARS, few_files, interrupted

ASKED = [dict(role='user', content='a')]
Level = enum.Enum('Level', dict(HIGH='xyz'), type=str)
Number = enum.IntEnum('Number', dict(ONE=1))


def chars(text):
    tokenizer = build_char_tokenizer(CHARS)
    tokenizer.chat_template = text
    return tokenizer


def here(tokenizer, **options):
    """What ``transformers`` gives in this process."""
    return tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False, **options)


class TestTemplate:

    def test_options_keep_their_types(self):
        tokenizer, one = chars('{{ messages[0].content }}{{ levels[1] }}'), Number.ONE
        mapping = types.MappingProxyType({1: Level.HIGH})
        for levels in ((0, 'xyz'), [0, 'xyz'], {1: 'xyz'}, {one: 'xyz'}, mapping, {1: True}, {1: 1.5}, {1: (1, 2)}):
            shown = 'xyz' if levels is mapping else levels[1]
            ids = encode_prompt(tokenizer, ASKED, chat_options=dict(levels=levels))
            assert tokenizer.decode(ids) == f'a{shown}'
        tokenizer, date = chars('{{ messages[0].content }} {{ date }}'), datetime.date(2026, 1, 2)
        assert encode_prompt(tokenizer, ASKED, chat_options=dict(date=date)) == here(tokenizer, date=date)

    def test_what_cannot_be_sent(self):
        tokenizer = chars('{{ messages[0].content }} {{ date }}')
        with pytest.raises(ConfigError, match='^env.chat_options: what a chat template reads must be made of .*pickle'):
            encode_prompt(tokenizer, ASKED, chat_options=dict(date=lambda: 1))
        assert tokenizer.decode(encode_prompt(tokenizer, ASKED, chat_options=dict(date=1))) == 'a 1'

    def test_a_change_of_the_tokenizer_is_seen(self):
        tokenizer = chars('{{ messages[0].content }}')
        first = encode_prompt(tokenizer, 'A')
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
        assert encode_prompt(tokenizer, 'A') == encode_prompt(tokenizer, 'a') != first
        tokenizer.chat_template = 'b{{ messages[0].content }}'
        assert encode_prompt(tokenizer, 'a') == tokenizer.encode('ba')
        tokenizer.add_tokens(['ba'])
        assert encode_prompt(tokenizer, 'a') == [len(tokenizer) - 1]

    def test_one_of_several_templates(self):
        content = '{{ messages[0].content }}'
        tokenizer = chars(dict(default=content, tool_use=content + '{{ tools|length }}'))
        tools = dict(tools=[dict(type='function', function=dict(name='f', description='', parameters={}))])
        assert tokenizer.decode(encode_prompt(tokenizer, ASKED)) == 'a'
        check_options(tokenizer, tools)
        assert tokenizer.decode(encode_prompt(tokenizer, ASKED, chat_options=tools)) == 'a1'
        tokenizer.chat_template = dict(other=content)
        check_options(tokenizer, dict(date=1))
        with pytest.raises(ConfigError, match='multiple chat templates with no default') as caught:
            encode_prompt(tokenizer, ASKED)
        assert '\n' not in caught.value.message

    def test_a_variable_that_the_template_sets_is_not_read(self):
        for text in ('{% set date = 1 %}{{ date }}', '{% for date in messages %}{{ date }}{% endfor %}',
                     '{{ dict(a=1) }}'):
            with pytest.raises(ConfigError,
                               match='env.chat_options.date = 2: the chat template reads no such variable'):
                check_options(chars(text), dict(date=2))
        check_options(chars('{% if not date %}{% set date = 1 %}{% endif %}{{ date }}'), dict(date=2))

    def test_one_process_renders_all_and_nothing_is_compiled_here(self, monkeypatch):
        """Neither for options nor for the names of special tokens in a message."""
        tokenizer = chars('{{ messages[0].content }}{{ date }}<eos>')
        with monkeypatch.context() as patch:
            patch.setattr('jinja2.Environment.compile', lambda *_, **__: pytest.fail('compiles here'))
            check_options(tokenizer, dict(date=1))
            plain = encode_prompt(tokenizer, ASKED, chat_options=dict(date=1))
            named = encode_prompt(tokenizer, 'a <eos>', chat_options=dict(date=1))
            encode_prompts(tokenizer, ['a'] * 99, chat_options=dict(date=1))
            assert len(template.SERVERS.running) == 1
            with pytest.raises(pytest.fail.Exception, match='compiles here'):  # as ever, outside of this package
                here(tokenizer, date=1)
        assert plain == here(tokenizer, date=1)
        assert named.count(tokenizer.eos_token_id) == 1 and tokenizer.decode(named) == 'a <eos>1<eos>'

    def test_a_process_that_does_not_start_ends_in_a_line(self):
        template.SERVERS.end()
        tokenizer = chars('{{ messages[0].content }}!')
        told = 'env.tokenizer: no process for its chat template can be started'
        with few_files(), pytest.raises(ConfigError, match=told) as told:
            encode_prompt(tokenizer, ASKED)
        assert '\n' not in told.value.message

    def test_an_interrupt_is_not_an_error_of_the_template(self):
        loop = '{% for i in range(99999) %}'
        with interrupted():
            encode_prompt(chars(f'{loop}{loop}{{% endfor %}}{{% endfor %}}'), ASKED)
