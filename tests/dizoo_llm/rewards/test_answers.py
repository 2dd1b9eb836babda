"""Verifiers against those who try: no text that is not a plain right answer may pass."""
import pytest

from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN

TRICKS = [
    '', ' ', '\n\n', '42 42', '42\n42', '4 2', '4', '420', '142', '42 is the answer', 'the answer is 42', '42!', '４２',
    '٤٢', '42\u200b', '\u202e24', 'x' * 100_000, '42' * 50_000, '<answer>', '</answer>42<answer>', '<answer>42',
    '42</answer>', '<answer></answer>', '<answer> </answer>', r'\boxed{}', r'\boxed{42', '####', '#### ', 'None', 'nan',
    '####\n\n42', '\\boxed{' * 50_000, '\\boxed{' * 9 + '42', '}' * 9 + '42', '$$42', '$+$42', '4,2', '0x2a', '42e0',
    '[42]', '{answer}', '<|im_end|>', '42<eos>', 'Question: 42?\nAnswer:'
]


def score(completion, answer='42', answer_in='whole', check='exact'):
    given = EXTRACTORS[answer_in](completion)
    return 0.0 if given is None else CHECKS[check]([(given, answer)])[0]


@pytest.fixture(params=list(CHECKS))
def check(request):
    if request.param == 'math_verify':
        pytest.importorskip('math_verify')
    return request.param


class TestAnswers:

    @pytest.mark.parametrize('answer_in', list(EXTRACTORS))
    def test_tricks_earn_nothing(self, answer_in, check):
        assert [text for text in TRICKS if score(text, '42', answer_in, check) != 0] == []

    @pytest.mark.parametrize(
        'completion, answer_in', [
            (' 42\n', 'whole'),
            ('6 * 7\n<answer> 42 </answer> done', 'answer_tag'),
            ('<answer>42</answer> so <answer>42</answer>', 'answer_tag'),
            (r'so \boxed{42}', 'boxed'),
            ('6 * 7 = 42\n#### 42', '####'),
            ('#### 42\nthat was it', '####'),
        ]
    )
    def test_right_answers(self, completion, answer_in):
        assert score(completion, answer_in=answer_in) == 1
        assert score(completion, answer_in=answer_in, check='number') == 1
        assert score(completion, '43', answer_in) == score(completion, '43', answer_in, 'number') == 0

    @pytest.mark.parametrize(
        'completion, answer_in', [
            ('<answer>41</answer><answer>42</answer>', 'answer_tag'),
            ('<answer>41<answer>42</answer></answer><answer>41</answer>', 'answer_tag'),
            (r'\boxed{41} or \boxed{42}', 'boxed'),
            ('#### 42 #### 41', '####'),
            ('#### 42 or 43', '####'),
        ]
    )
    def test_several_answers_are_none(self, completion, answer_in):
        assert score(completion, answer_in=answer_in) == 0

    def test_what_is_written_is_found(self):
        for answer_in, extract in EXTRACTORS.items():
            assert extract(WRITTEN[answer_in].format('4{2}')) == '4{2}'
        assert EXTRACTORS['boxed'](r'\boxed{\boxed{42}}') == '42'

    @pytest.mark.parametrize(
        'given, answer, same', [
            ('1,234', '1234', 1), ('$1,234.50', '1234.5', 1), ('-5', '-5.0', 1), ('+5', '5', 1), ('.5', '0.50', 1),
            ('50%', '50', 1), ('5.', '5', 1), ('12,34', '1234', 0), ('--5', '5', 0), ('5-', '5', 0),
            ('1.2.3', '1.2', 0), ('-5', '5', 0), ('.', '0', 0), ('', '', 0), ('$', '0', 0)
        ]
    )
    def test_numbers(self, given, answer, same):
        assert CHECKS['number']([(given, answer)]) == [same]

    @pytest.mark.parametrize(
        'given, answer, same', [
            (r'\frac{1}{2}', '0.5', 1), ('x^2+2x+1', '(x+1)^2', 1), ('3', '4', 0), ('', '4', 0), ('no idea', '4', 0),
            ('2\\sqrt{2}', 'sqrt(8)', 1), ('\\text{42 or 43}', '42', 0), ('5 \\text{ cm}', '5 \\text{ cm}', 1),
            ('(1, 2)', '(1,2)', 1), ('41=42', '42', 0), ('x=42', 'x = 42', 1), ("__import__('os').abort()", '4', 0)
        ]
    )
    def test_mathematics(self, given, answer, same):
        pytest.importorskip('math_verify')
        assert CHECKS['math_verify']([(given, answer)]) == [same]

    @pytest.mark.parametrize('answer_in', list(EXTRACTORS))
    def test_no_character_joins_two_answers(self, check, answer_in):
        """Every control character and every white space but the space, of one byte and beyond."""
        marks = [chr(i) for i in range(0x110000) if chr(i).isspace() or i < 0xa1 and not chr(i).isprintable()]
        assert {'\x00', '\t', '\n', '\x0b', '\x0c', '\r', '\x1c', '\x7f', '\x85', '\u2028'} < set(marks)
        marks = [mark for mark in marks if mark != ' ' and (mark, answer_in) != ('\n', '####')]
        two = [f'{one}{mark}{other}' for mark in marks for one, other in (('7', '2'), ('2', '7'))]
        paid = [text for text in two if score(WRITTEN[answer_in].format(text), '2', answer_in, check)]
        assert paid == []
