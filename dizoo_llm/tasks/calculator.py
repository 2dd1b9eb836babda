"""A calculator for the task ``tools``: ``functions=['dizoo_llm.tasks.calculator:calc']``."""
import ast
import json
import operator
import re
from fractions import Fraction
from typing import Sequence, Tuple

from dizoo_llm.base import Problem

MOST = 200  # characters of an expression
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calc(expression: str) -> str:
    """
    Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, for example 12 * (3 + 4).
    """
    if len(expression) > MOST:
        raise ValueError(f'the expression has {len(expression)} characters, at most {MOST} are allowed')
    try:
        tree = ast.parse(expression.strip(), mode='eval').body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError('not an arithmetic expression') from None
    try:
        value = _value(tree)
        return str(value.numerator) if value.denominator == 1 else f'{float(value):.10g}'
    except ZeroDivisionError:
        raise ValueError('division by zero') from None
    except OverflowError:
        raise ValueError('the result is too large') from None


def demonstrate(problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
    """A right dialogue: call ``calc`` with the last expression of the prompt, and answer with its result."""
    if turns:
        return turns[-1][1].rpartition('tool: ')[2]
    expression = re.findall(r'[\d(](?:[\d\s+*/().-]*[\d)])?', problem.text)[-1]
    call = dict(name='calc', arguments=dict(expression=expression))
    return f"<tool_call>{json.dumps(call, separators=(',', ':'))}</tool_call>"


def _value(node: ast.AST) -> Fraction:
    """Exact, so that 0.1 + 0.2 is 0.3. Only the nodes named here are computed; there is no power."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(repr(node.value))  # ValueError for inf
    raise ValueError('only numbers, + - * / and parentheses are allowed')
