import runpy
import sys


def run(path: str, mode: str = 'serial_onpolicy') -> None:
    """
    Run the config file ``__file__``, started as a program, in a mode, ``serial_onpolicy`` or ``serial`` with a replay
    buffer: ``python -m ding_grpo -m MODE -c PATH``, with the options of its command line.
    """
    sys.argv[1:] = ['-m', mode, '-c', path, *sys.argv[1:]]
    runpy.run_module('ding_grpo', run_name='__main__')
