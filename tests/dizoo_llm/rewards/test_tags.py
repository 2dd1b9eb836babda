import pytest

from dizoo_llm.base.time_limit import time_limit
from dizoo_llm.rewards import answer_reward, format_reward, is_formatted

PERFECT = '9 4 </think> <answer> 3 </answer>'


class TestRewards:

    @pytest.mark.parametrize(
        'text', [PERFECT, '<answer>3</answer>', 'x <answer>\n3 </answer> y', '<answer> 3 </answer>' * 2]
    )
    def test_right_answers(self, text):
        assert answer_reward(text, '3') == 1

    @pytest.mark.parametrize(
        'text', [
            '', '   ', '3', '</think> 3', '<answer> 3', '3 </answer>', '<answer> </answer>', '<answer></answer> 3',
            '<answer> 13 </answer>', '<answer> 3 4 </answer>', '<answer> 33 </answer>', '<answer> 3 </think> </answer>',
            '<answer> 4 </answer> <answer> 3 </answer>', '</answer> 3 <answer>', '<ANSWER> 3 </ANSWER>',
            '<answer> \uff13 </answer>', 'x ' * 100_000
        ]
    )
    def test_wrong_answers(self, text):
        assert answer_reward(text, '3') == 0

    @pytest.mark.parametrize(
        'text, tags, formatted',
        [
            (PERFECT, 3, True),
            ('</think><answer>3</answer>', 3, True),
            ('</think> <answer> any thing </answer>', 3, True),
            ('', 0, False),
            ('1 2 3', 0, False),
            ('1 </think> 2', 1, False),
            ('</think> <answer>', 2, False),
            ('</think> <answer> 3 </answer> 5', 3, False),  # something behind the block
            ('</think> 4 <answer> 3 </answer>', 3, False),  # something between
            ('</think> <answer> </answer>', 3, False),  # nothing in the block
            ('</think><answer></answer>', 3, False),
            ('<answer> 3 </answer> </think>', 0, False),  # the wrong order
            ('1 </think> </answer> <answer>', 1, False),
            ('<think> </think> <answer> 3 </answer>', 0, False),  # a tag too many before
            ('</think> </think> <answer> 3 </answer>', 1, False),  # between
            ('</think> <answer> 3 </answer> <answer> 3 </answer>', 3, False),  # behind
        ]
    )
    def test_the_format_by_hand(self, text, tags, formatted):
        assert format_reward(text) == tags / 3 and is_formatted(text) is formatted

    def test_long_input_takes_no_more_than_linear_time(self):
        """Quadratic time would be minutes."""
        with time_limit(60):
            for reward in (format_reward, is_formatted, lambda text: answer_reward(text, '3')):
                reward('<answer> ' * 200_000)
