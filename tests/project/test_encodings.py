"""Text files are UTF-8 whatever the locale: one written in a Latin-1 or GBK locale is read in another."""
import ast
import glob
import os

import pytest

ROOT = os.path.join(os.path.dirname(__file__), '..', '..')
FILES = sorted(
    path for part in ('ding_common', 'ding_grpo', 'dizoo_llm')
    for path in glob.glob(os.path.join(ROOT, part, '**', '*.py'), recursive=True)
)


def opens_text(call):
    """Whether a call opens a file as text."""
    if not isinstance(call.func, ast.Name) or call.func.id != 'open':
        return False
    mode = call.args[1].value if len(call.args) > 1 else 'r'
    return 'b' not in mode


@pytest.mark.unittest
def test_every_text_file_is_opened_with_an_encoding():
    found = 0
    for path in FILES:
        with open(path, encoding='utf-8') as f:
            calls = [node for node in ast.walk(ast.parse(f.read())) if isinstance(node, ast.Call)]
        for call in filter(opens_text, calls):
            found += 1
            assert 'encoding' in {keyword.arg for keyword in call.keywords}, f'{path}:{call.lineno}'
    assert found > 20
