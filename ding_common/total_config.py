"""The complete config that DI-engine writes into the folder of a run, read as data: no code in it is run."""
import ast
import os
from typing import Any, Dict

from .errors import ConfigError

NAME = 'total_config.py'
_NUMBERS = dict(inf=float('inf'), nan=float('nan'))


def read_total_config(folder: str) -> Dict[str, Any]:
    """
    Overview:
        The config of a run, with all defaults.
    Arguments:
        - folder (:obj:`str`): Of the run.
    Returns:
        - config (:obj:`Dict[str, Any]`): The sections ``env`` and ``policy``, ``exp_name`` and ``seed``.
    Raises:
        - ConfigError: If the folder contains none, or it contains more than plain values.
    """
    path = os.path.join(folder, NAME)
    try:
        with open(path, encoding='utf-8') as f:
            tree = ast.parse(f.read())
        value = next(n.value for n in tree.body if isinstance(n, ast.Assign) and _name(n.targets[0]) == 'exp_config')
        return ast.literal_eval(_Numbers().visit(value))
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}. Every run writes this file into its folder.') from error
    except (SyntaxError, ValueError, StopIteration) as error:
        raise ConfigError(f'{path}: contains more than plain values ({error}), so it cannot be read.') from error


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ''


class _Numbers(ast.NodeTransformer):
    """Replaces the names of numbers that have no literal."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_NUMBERS[node.id]) if node.id in _NUMBERS else node
