import pytest

from dizoo_llm.rewards import answer_reward, format_reward, is_formatted

PERFECT = '9 4 </think> <answer> 3 </answer>'


@pytest.mark.unittest
class TestAnswerReward:

    @pytest.mark.parametrize(
        'text', [PERFECT, '<answer>3</answer>', 'x <answer>\n3 </answer> y', '<answer> 3 </answer>' * 2]
    )
    def test_right(self, text):
        assert answer_reward(text, '3') == 1

    @pytest.mark.parametrize(
        'text',
        [
            '',
            '   ',
            '3',
            '</think> 3',
            '<answer> 3',
            '3 </answer>',
            '<answer> </answer>',
            '<answer></answer> 3',
            '<answer> 13 </answer>',
            '<answer> 3 4 </answer>',
            '<answer> 33 </answer>',
            '<answer> 3 </think> </answer>',
            '<answer> 4 </answer> <answer> 3 </answer>',  # lists answers
            '</answer> 3 <answer>',
            '<ANSWER> 3 </ANSWER>',
            '<answer> \uff13 </answer>',  # a full-width 3
            'x ' * 100_000,
        ]
    )
    def test_wrong(self, text):
        assert answer_reward(text, '3') == 0


@pytest.mark.unittest
class TestFormatReward:

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
    def test_by_hand(self, text, tags, formatted):
        assert format_reward(text) == tags / 3 and is_formatted(text) is formatted

    @pytest.mark.parametrize('reward', [format_reward, is_formatted, lambda text: answer_reward(text, '3')])
    def test_long_input_takes_no_more_than_linear_time(self, reward):
        import time
        seconds = []
        for n in (2_000, 32_000):
            start = time.perf_counter()
            reward('<answer> ' * n)
            seconds.append(time.perf_counter() - start)
        assert seconds[1] < 100 * max(seconds[0], 1e-3)  # 16 times the input; quadratic would be 256 times
