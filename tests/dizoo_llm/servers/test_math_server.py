"""Scores of ``math_verify`` are those of one process, whoever asks and whatever becomes of its server."""
import multiprocessing
import threading

import pytest

from dizoo_llm import servers
from dizoo_llm.rewards.answers import math_verify
from tests.dizoo_llm.helper import interrupted

pytest.importorskip('math_verify')
QUESTIONS = [('1/2', '0.5', 1.), ('3', '4', 0.), (r'\frac{2}{4}', '0.5', 1.), ('x+2', '2+x', 1.), ('x+2', '3+x', 0.)]


def ask(first, number=20):
    """Whether each score is right; the order of the questions differs from caller to caller."""
    asked = [QUESTIONS[(first + i) % len(QUESTIONS)] for i in range(number)]
    return [math_verify([(given, answer)]) == [score] for given, answer, score in asked]


class TestMathServer:

    def test_forks_get_their_own_answers_also_while_a_thread_asks(self):
        """The thread that holds the lock does not exist in the fork."""
        assert math_verify([('1', '1')]) == [1]  # so that there is a server before the forks
        thread = threading.Thread(target=ask, args=(0, 200))
        thread.start()
        try:
            with multiprocessing.get_context('fork').Pool(3) as pool:
                assert pool.map(ask, range(3), chunksize=1) == [[True] * 20] * 3
        finally:
            thread.join()
        assert ask(0) == [True] * 20

    def test_answers_do_not_wait_for_those_that_take_for_ever(self):
        """These compute in C, where no signal ends them. Three end at the limit, each asked twice; the others are
        answered by a server that is started meanwhile."""
        slow = [*(f'{n}^{{9^{{9^{{9}}}}}}' for n in range(2, 4)), '100000000!']
        pairs = [*((text, '4') for text in slow), ('1/2', '0.5'), *((text, '4') for text in slow), ('3', '4')]
        own = servers.Servers('math-verify', 'mathematics', most=servers.MOST, seconds=3.0)
        found = own.ask([('same', answer, given) for given, answer in pairs], [given for given, _ in pairs])
        running = len(own.running)
        own.end()
        assert [type(score) for score in found] == [TimeoutError] * 3 + [bool] + [TimeoutError] * 3 + [bool]
        assert found[3] and not found[7]
        assert found[0] is found[4] and 'math-verify took more than 3 s for' in str(found[0])
        assert 1 < running <= servers.MOST and ask(0) == [True] * 20

    def test_an_answer_after_an_interrupt_is_not_that_of_the_next_question(self):
        assert math_verify([('1', '1')]) == [1]
        with interrupted():
            math_verify([('9^{9^{9^{9}}}', '4')])
        assert ask(0) == [True] * 20
