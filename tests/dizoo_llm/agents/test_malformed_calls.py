"""Calls of functions in text: what is malformed stays text, and a string stays a string."""
import time

import pytest

from dizoo_llm.agents.tool_calls import calls_of

TAGS = '{# <tool_call> <function= #}'  # a template of Qwen 3.5


def tagged(inner):
    return f'<tool_call>\n<function=f>\n{inner}\n</function>\n</tool_call>'


def arguments(text, template=None, **properties):
    tools = [dict(type='function', function=dict(name='f', parameters=dict(properties=properties)))]
    content, calls = calls_of(text, template, 0, tools)
    assert calls or content == text
    return calls[0].arguments if calls else None


@pytest.mark.parametrize(
    'inner, found', [
        ('', {}),
        ('<parameter=a>\n1\n</parameter>\n<parameter=b>\n\n</parameter>', dict(a='1', b='')),
        ('<parameter=a>1</parameter>', dict(a='1')),
        ('<parameter=a>\nx <y> & </z>\n</parameter>', dict(a='x <y> & </z>')),
        ('<parameter=a>\n1', None),
        ('<parameter=a>\n1\n<parameter=b>\n2\n</parameter>', None),
        ('<parameter=a>\n1\n</parameter>\n<parameter=b>\n2', None),
        ('<parameter=a\n1\n</parameter>', None),
        ('1\n</parameter>', None),
        ('a = 1', None),
        ('</function>\n<function=g>\n<parameter=a>\n1\n</parameter>', None),
    ]
)
def test_a_parameter_without_its_end_is_no_call_without_it(inner, found):
    assert arguments(tagged(inner), TAGS) == found


GOOD, BAD = '<tool_call><function=f></function></tool_call>', '<tool_call>f()</tool_call>'


@pytest.mark.parametrize(
    'text, rest, calls', [
        (GOOD + BAD, BAD, 1),
        (f'a {BAD} {GOOD}', f'a {BAD}', 1),
        (GOOD + GOOD.removesuffix('</tool_call>') + ' \n', '', 2),
        (f"{GOOD.removesuffix('</tool_call>')} and so on", None, 0),
        (GOOD.removesuffix('</function></tool_call>'), None, 0),
        (GOOD.removesuffix('</tool_call>') + GOOD, None, 0),
    ]
)
def test_a_malformed_call_in_tags_leaves_others(text, rest, calls):
    """And the end of the last call may be missing, as TRL and vLLM read it."""
    found = calls_of(text, TAGS, 0)
    assert (found[0], len(found[1])) == (text if rest is None else rest, calls)
    assert calls_of('<tool_call>{"name": "f"}</tool_call>' + BAD, None, 0)[1] == ()


def test_arguments_that_are_not_an_object_make_a_call_only_where_asked():
    text = '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'
    tools = [dict(type='function', function=dict(name='f', parameters=dict(properties=dict(a=INTEGER))))]
    assert calls_of(text, None, 0, tools) == (text, ())
    (found, ), = (calls_of(text, None, 0, tools, any_arguments=True)[1:])
    assert found.arguments == [1]


@pytest.mark.parametrize('text', ['<tool_call>' + ' ' * 50_000, tagged('<parameter=a>' + ' ' * 50_000)], ids=len)
@pytest.mark.parametrize('template', [None, TAGS])
def test_white_space_in_a_call_takes_no_time(text, template):
    begun = time.process_time()
    assert calls_of(text, template, 0) == (text, ())
    assert time.process_time() - begun < 5  # in the third power of its length it takes years


INTEGER, NUMBER, STRING = (dict(type=name) for name in ('integer', 'number', 'string'))
UNION = [dict(type=name) for name in ('integer', 'number', 'boolean', 'null', 'array', 'object', 'string')]


@pytest.mark.parametrize(
    'text', [
        '01234', '1e3', ' 12', '12 ', '+5', '-0', '1_000', '1.50', '1.10', '٣', 'nan', 'Infinity', 'TRUE', 'NULL',
        'none', ' [1]', '[1', ''
    ]
)
def test_a_string_that_looks_like_another_type_stays_one(text):
    assert arguments(f'<tool_call>{{"name": "f", "arguments": {{"a": "{text}"}}}}</tool_call>',
                     a=dict(anyOf=UNION)) == dict(a=text)  # yapf: disable


@pytest.mark.parametrize(
    'text, value', [
        ('12', 12), ('-5', -5), ('0', 0), ('1.5', 1.5), ('2.0', 2.0), ('true', True), ('False', False), ('null', None),
        ('None', None), ('[1,2]', [1, 2]), ('{}', {})
    ]
)  # yapf: disable
def test_what_is_written_as_another_type_is_read_as_it(text, value):
    found = arguments(tagged(f'<parameter=a>\n{text}\n</parameter>'), TAGS, a=dict(anyOf=UNION))
    assert found == dict(a=value) and type(found['a']) is type(value)


@pytest.mark.parametrize(
    'text, schema, value', [
        ('01234', INTEGER, 1234),
        ('1e3', NUMBER, 1000),
        ('1.0', INTEGER, 1),
        ('1.50', NUMBER, 1.5),
        ('TRUE', dict(type='boolean'), True),
        ('x', INTEGER, 'x'),
        ('7', STRING, '7'),
        ('null', dict(STRING, nullable=True), None),
        ('NULL', dict(STRING, nullable=True), 'NULL'),
        ('7', dict(type=['string', 'integer']), 7),
        ('07', dict(type=['string', 'integer']), '07'),
        ('7', dict(INTEGER, anyOf=3), 7),
    ]
)
def test_a_type_that_no_string_has_is_read_in_any_form(text, schema, value):
    found = arguments(tagged(f'<parameter=a>\n{text}\n</parameter>'), TAGS, a=schema)
    assert found == dict(a=value) and type(found['a']) is type(value)
