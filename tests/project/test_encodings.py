"""Text files are UTF-8 whatever the locale: one written in a Latin-1 or GBK locale is read in another."""
import ast
import glob
import os

import pytest

from tests.processes import ROOT


def opens_text(node):
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'open'):
        return False
    return len(node.args) < 2 or 'b' not in node.args[1].value


@pytest.mark.unittest
def test_every_text_file_is_opened_with_an_encoding():
    found = 0
    for part in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        for path in glob.glob(os.path.join(ROOT, part, '**', '*.py'), recursive=True):
            with open(path, encoding='utf-8') as f:
                calls = [node for node in ast.walk(ast.parse(f.read())) if opens_text(node)]
            found += len(calls)
            for call in calls:
                assert 'encoding' in {keyword.arg for keyword in call.keywords}, f'{path}:{call.lineno}'
    assert found > 20
