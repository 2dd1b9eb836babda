"""Where the project is, and its programs as processes."""
import os
from typing import List

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
RECORDS = os.path.join(ROOT, 'benchmarks', 'results')


def command(python: str, module: str, *arguments: str) -> List[str]:
    """The command of a module of this folder, such as ``beside_trl.update_peer``. It runs in ``ROOT``."""
    return [python, '-m', f'benchmarks.{module}', *arguments]
