"""Runs the tests that need a GPU. Without one, says so, lists them, and ends with exit code 1."""
import os
import subprocess
import sys

import torch

PYTEST = [sys.executable, '-m', 'pytest', '-m', 'cudatest']


def main() -> int:
    """The exit code."""
    device = os.environ.get('TEST_DEVICE', 'cuda')
    if device == 'cpu':
        return subprocess.run([*PYTEST, '-v', os.path.join('tests', 'gpu')]).returncode
    if torch.cuda.is_available():
        print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}', flush=True)
        return subprocess.run([*PYTEST, '-v']).returncode
    print('no GPU was found by torch, so nothing was tested. With one, these tests would run:', flush=True)
    listed = subprocess.run([*PYTEST, '--collect-only', '-q'], capture_output=True, text=True)
    print(listed.stdout)
    return 1


if __name__ == '__main__':
    sys.exit(main())
