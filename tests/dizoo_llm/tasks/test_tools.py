"""Functions that a model calls: what is a call, and what is refused."""
import pytest

from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task
from dizoo_llm.tasks.tools import PRINTABLE
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.dizoo_llm.functions import CALC, HERE, call, reply, said, tools
from tests.dizoo_llm.helper import play, pretrained, problems, read
from tests.shipped import CHAT


class TestCalls:

    def test_a_dialogue_by_hand(self):
        task = tools()
        first = reply(task, 'Let me see. ' + call('calc', expression='12 * 34'))
        assert first.text == [dict(role='tool', content='408')] and not first.done
        assert first.parts == dict(right=0, calls=1, call_errors=0)
        last = reply(task, task.demonstration(task.problem(0)))
        assert last.done and last.parts == dict(right=1, calls=0, call_errors=0)
        assert task.weights == dict(right=1, calls=0, call_errors=0) and task.return_part == 'right'

    def test_a_cut_call_is_never_executed(self):
        text = call('calc', expression='12 * 34')
        for end in range(len('<tool_call>'), len(text) + 1):
            answer = reply(tools(), text[:end], cut=True)
            assert answer.text[0]['content'] == 'error: the turn was cut, nothing was called' and not answer.done
            assert answer.parts['call_errors'] == 1
        assert reply(tools(), '408', cut=True).parts['right'] == 0  # as the inner task says

    def test_several_calls_are_answered_in_order(self):
        text = call('calc', expression='1+1') + ' and ' + call('calc', expression='2+2')
        assert said(tools(), text) == ['2', '4']
        answer = reply(tools(max_calls=1), text)
        assert [m['content'] for m in answer.text] == ['2', 'error: a turn may have 1 calls']
        assert answer.parts == dict(right=0, calls=2, call_errors=1)

    @pytest.mark.parametrize(
        'text, told', [
            ('', 'not valid JSON'),
            ('{"name": "calc", "arguments": {"expression": NaN}}', 'NaN is not a JSON number'),
            ('{"name": "calc", "name": "calc", "arguments": {}}', 'a name occurs twice'),
            ('[' * 100_000, 'recursion'),
            ('{"name": "calc", "arguments": []}', 'a call must be'),
            ('{"name": "calc", "arguments": {}, "id": 1}', 'a call must be'),
            ('{"name": ["calc"], "arguments": {}}', 'a call must be'),
            ('[]', 'a call must be'),
            ('{"name": "eval", "arguments": {}}', "no function 'eval', only calc"),
            ('{"name": "calc", "arguments": {}}', 'calc needs the argument expression'),
            ('{"name": "calc", "arguments": {"expresion": "1"}}', "did you mean 'expression'"),
            ('{"name": "calc", "arguments": {"expression": "1", "x": 2}}', "no argument 'x'"),
        ]
    )
    def test_malformed_calls_are_answered_with_the_reason(self, text, told):
        answer, = said(tools(), f'<tool_call>{text}</tool_call>')
        assert answer.startswith('error: ') and told in answer and len(answer) < 300 and '\n' not in answer
        assert said(tools(), f'<tool_call>{text}') == ['error: the call does not end with </tool_call>']

    @pytest.mark.parametrize(
        'arguments, told', [
            (dict(number=3, factor=4), "3 4.0 'm' False"),
            (dict(number=3, unit='km', exact=True), "3 2.0 'km' True"),
            (dict(number=3.0), 'error: convert: number must be an integer, not 3.0'),
            (dict(number=True), 'error: convert: number must be an integer, not True'),
            (dict(number=1, factor=10 ** 400), 'error: convert: factor must be a number'),
            (dict(number=1, factor=float('inf')), 'error: convert: factor must be a number, not inf'),
            (dict(number=1, unit=None), 'error: convert: unit must be text, not None'),
            (dict(number=1, exact=1), 'error: convert: exact must be true or false, not 1'),
        ]
    )
    def test_arguments_have_the_types_of_the_function(self, arguments, told):
        text = call('convert', **arguments).replace('Infinity', '1e999')
        assert said(tools(HERE + 'convert'), text)[0].startswith(told)

    def test_examples_are_demonstrated_dialogues_and_not_trained(self):
        inner = dict(type='arithmetic', operations='*', low=10, high=20, examples=0, eval_size=7)
        options = dict(type='tools', functions=[CALC], demonstration='dizoo_llm.tasks.calculator:demonstrate')
        plain, task = create_task(dict(options, task=inner)), create_task(dict(options, task=inner, examples=2))
        first, second = plain.problem(0), plain.problem(1)
        expression = first.prompt[0]['content'][len('What is '):-1]
        shown = task.problem(0).prompt[:-1]
        called = '<tool_call>{"name":"calc","arguments":{"expression":"%s"}}</tool_call>' % expression
        assert shown[:1] + shown[4:5] == first.prompt + second.prompt and len(shown) == 8
        assert [(m['role'], m['content'])
                for m in shown[1:4]] == [('assistant', called), ('tool', first.answer), ('assistant', first.answer)]
        assert len(task) == len(plain) - 2 and task.problem(0).prompt[-1:] == plain.problem(2).prompt
        held_out, own = problems(task.evaluation()), problems(plain.evaluation())
        assert [problem.prompt for problem in held_out] == [shown + problem.prompt for problem in own]
        assert len(held_out) == 7
        assert task.demonstration(task.problem(3)) == plain.demonstration(plain.problem(5))


def environment(*functions, **options):
    options = dict(dict(max_new_tokens=99, max_turns=3, max_reply_tokens=600), **options)
    return TokenEnv(tools(*functions, max_chars=50), **options)


@pytest.mark.envtest
class TestEnvironment:

    def test_an_answer_is_text_where_no_template_is_applied(self):
        env = environment()
        (obs, *_), (_, *last, info) = play(env, call('calc', expression='12 * 34'), '408')
        assert read(env, obs).endswith('</tool_call><eos>408') and last == [1, True, False]
        assert info['reward_parts'] == dict(right=1, calls=1, call_errors=0) and info['return'] == 1

    def test_special_tokens_in_an_answer_lose_no_other_row(self):
        env = environment(HERE + 'hostile')
        (obs, *_), = play(env, call('hostile', what='special'))
        end = obs[obs >= 0][-len('<eos><pad>'):].tolist()
        assert env.tokenizer.decode(end) == '<eos><pad>' and env.tokenizer.eos_token_id not in end

    def test_a_stop_string_ends_the_turn_behind_a_call(self):
        env = environment(stop=['</tool_call>'])
        (obs, *_), = play(env, call('calc', expression='2*3') + ' so it is 7')
        assert read(env, obs).endswith('</tool_call><eos>6')

    @pytest.mark.parametrize(
        'before, begins', [
            ('{% if tools %}[{{ tools[0].function.name }}]{% endif %}', '[calc]<user>12 * 34<assistant>'),
            ('', '<system>You may call functions.')
        ]
    )
    def test_a_template_gets_messages_and_schemas(self, tmp_path, before, begins):
        tokenizer = build_char_tokenizer(PRINTABLE)
        tokenizer.chat_template = before + CHAT
        env = environment(tokenizer=pretrained(tokenizer, tmp_path))
        turn = call('calc', expression='1')
        (obs, *_), = play(env, turn)
        prompt, _, answer = read(env, obs).partition(f'{turn}<eos>')
        assert prompt.startswith(begins) and prompt.endswith('<user>12 * 34<assistant>')
        assert begins[0] == '[' or '"name": "calc"' in prompt
        assert answer == '<tool>1<assistant>'

    def test_an_inner_score_that_raises_loses_its_episode(self):
        info = play(environment(), 'crash')[-1][-1]
        assert 'OSError: gone' in info['failed'] and '\n' not in info['failed'] and len(info['failed']) < 1000
