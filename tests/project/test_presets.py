"""Every loss preset is documented with its values."""
import os
import re

import pytest

from ding_grpo.rl_utils import LOSS_PRESETS

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
COLUMNS = ('ratio', 'surrogate', 'reduction', 'clip', 'adv_method')
RANGE = ('clip', 'dppo_tv', 'dppo_kl', 'geo_mean', 'clip_cov', 'cpgd')  # surrogates with a clipping range


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as f:
        return f.read()


def documented():
    """Columns by preset, of the first table of docs/reference/losses.md whose rows have a preset and its choices."""
    page = read('docs', 'reference', 'losses.md')
    rows = re.findall(r'^\| `(\w+)` \| (\w+) \| (\w+) \| (\w+) \| ([^|]*) \| ([^|]*) \|$', page, re.M)
    return {name: dict(zip(COLUMNS, (*columns[:-1], columns[-1].strip().strip('`')))) for name, *columns in rows}


def expected(preset):
    bounds = [x for x in (preset.clip_ratio, preset.clip_ratio_high) if x is not None]
    other = f'bound {bounds[-1]}' if preset.surrogate == 'cispo' else 'none'
    return dict(
        ratio=preset.ratio,
        surrogate=preset.surrogate,
        reduction=preset.reduction,
        clip=bounds if preset.surrogate in RANGE else other,
        adv_method=preset.adv_method,
    )


@pytest.mark.unittest
class TestPresets:

    @pytest.mark.parametrize('name', LOSS_PRESETS)
    def test_is_documented_with_its_values(self, name):
        found = documented()[name]
        if found['surrogate'] in RANGE:
            found['clip'] = [float(bound) for bound in found['clip'].split(', ')]
        assert found == expected(LOSS_PRESETS[name])

    @pytest.mark.parametrize('name', LOSS_PRESETS)
    def test_its_formula_is_documented(self, name):
        """By its own name, or by that of its surrogate, beside the row of the table above."""
        text, surrogate = read('docs', 'reference', 'losses.md'), LOSS_PRESETS[name].surrogate
        assert text.count(f'| `{name}` |') >= 2 or f'| `{surrogate}` |' in text

    def test_no_other_is_documented(self):
        assert list(documented()) == list(LOSS_PRESETS)
