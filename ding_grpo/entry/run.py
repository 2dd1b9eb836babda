import runpy
import sys


def run(path: str, mode: str = 'serial_onpolicy') -> None:
    """Run a config file that was started as a program: ``python -m ding_grpo -m MODE -c PATH``, with the options of its
    command line. The mode ``serial`` has a replay buffer."""
    sys.argv[1:] = ['-m', mode, '-c', path, *sys.argv[1:]]
    runpy.run_module('ding_grpo', run_name='__main__')
