"""Common beginnings of prompts: which ones are read once, and where their tokens stand."""
import itertools
import random

import pytest

from ding_grpo.model.read.prompts import SEGMENT, common_spans

from tests.model.helper import divisions


def common(prompts):
    """Tokens that distinct prompts have in common, of which each keeps one for itself."""
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*prompts))
    return min(len(list(columns)), min(map(len, prompts)) - 1)


def saved(spans, prompts, least):
    return sum((end - begin - 1) * common(prompts[begin:end]) - least for begin, end, *_ in spans if end - begin > 1)


class TestSpans:

    @pytest.mark.parametrize('least', [0, 3])
    @pytest.mark.parametrize('seed', range(20))
    def test_no_division_saves_more(self, seed, least):
        generator = random.Random(seed)
        drawn = {tuple(generator.choices(range(2), k=generator.randint(2, 7))) for _ in range(8)}
        prompts = [list(p) for p in sorted(drawn)]
        best = max(saved(spans, prompts, least) for spans in divisions(len(prompts)))
        spans = common_spans(prompts, least)
        assert saved(spans, prompts, least) == max(best, 0)
        if spans:
            assert [begin for begin, _, _ in spans] == [0] + [end for _, end, _ in spans[:-1]]
            assert spans[-1][1] == len(prompts)
            assert all(n == (common(prompts[b:e]) if e - b > 1 else 1) for b, e, n in spans)

    def test_a_prompt_of_one_token_shares_nothing(self):
        assert common_spans([[1], [1, 2], [1, 3]], 0) == []

    def test_what_saves_too_little_is_not_worth_a_segment(self):
        beginning = list(range(SEGMENT))
        prompts = [beginning + [i] for i in range(2)]
        assert common_spans(prompts, SEGMENT) == []
        assert common_spans([*prompts, beginning + [2]], SEGMENT) == [(0, 3, SEGMENT)]
