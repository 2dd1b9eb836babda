import random

import pytest

from dizoo_llm.tasks.calculator import calc


@pytest.mark.unittest
class TestCalculator:

    @pytest.mark.parametrize(
        'expression, value', [
            ('12 * 34', '408'), ('2+3*4', '14'), ('(2+3)*-4', '-20'), ('7/2', '3.5'), ('6/3', '2'), ('.1+.2', '0.3'),
            ('1/3*3', '1'), ('1/3', '0.3333333333'), (' 5 ', '5'), ('1e3', '1000'), ('9' * 90 + '*1', '9' * 90)
        ]
    )
    def test_by_hand(self, expression, value):
        assert calc(expression) == value

    def test_integers_as_python_computes_them(self):
        random.seed(0)
        for _ in range(500):
            a, b, c = (random.randint(0, 99) for _ in range(3))
            text = f'{a} {random.choice("+-*")} ({b} {random.choice("+-*")} {c})'
            assert calc(text) == str(eval(text))

    @pytest.mark.parametrize(
        'expression', [
            '', '1 +', '2 ** 9', '2 ** 9 ** 9', '1 // 2', 'a', '__import__("os")', '"a" * 9', '1; 2', 'True', '1j',
            '[1]', 'x := 1', '1 < 2', '~1', '1e999', '1 / 0', '1/(1-1)', '(' * 150, '-' * 190 + 'x', '1+' * 100 + '1',
            '1\0', '٣'
        ]
    )
    def test_anything_else_is_an_error(self, expression):
        with pytest.raises(ValueError):
            calc(expression)
