"""
Runs the tests that need a GPU: `python -m tests.gpu`. Without one it says so, lists them, and ends with exit code 1.
`--device simulated` runs them on a simulated GPU (tests/simulated_gpu), `--device cpu` those of this folder on a CPU;
`--small` leaves out the runs until something is learned.
"""
import argparse
import os
import subprocess
import sys

import torch

PYTEST = [sys.executable, '-m', 'pytest', '-m', 'cudatest', '-v', '--durations=5']


def main() -> int:
    """The exit code."""
    arguments = argparse.ArgumentParser(prog='python -m tests.gpu', description=__doc__)
    arguments.add_argument('--device', choices=('cuda', 'cpu', 'simulated'), default='cuda')
    arguments.add_argument('--small', action='store_true')
    given = arguments.parse_args()
    command = [*PYTEST, *(['-k', 'not is_learned'] if given.small else [])]
    if given.device != 'cuda':
        os.environ['TEST_DEVICE'] = given.device  # read by tests/conftest.py and tests/gpu/test_on_gpu.py
        of_cpu = [os.path.dirname(__file__)] if given.device == 'cpu' else []
        return subprocess.run([*command, *of_cpu]).returncode
    if torch.cuda.is_available():
        print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}', flush=True)
        return subprocess.run(command).returncode
    print('no GPU was found by torch, so nothing was tested. With one, these tests would run:', flush=True)
    listed = subprocess.run([*command, '--collect-only', '-q'], capture_output=True, text=True)
    print(listed.stdout)
    return 1


if __name__ == '__main__':
    sys.exit(main())
