"""
``python -m benchmarks`` prints the names of the programs, ``python -m benchmarks NAME [OPTIONS]`` runs one, and
``python -m benchmarks --needs NAME`` prints what the Makefile installs for it. Needs only Python.
"""
import sys
from typing import List

from benchmarks.programs import programs, run


def main(arguments: List[str]) -> int:
    """The exit code."""
    found = programs()
    if not arguments:
        for program in found.values():
            print(f'{program.name:20s} {program.minutes:>5s} min  {program.shows}'.replace('hours min', '  hours  '))
        return 0
    only_needs = arguments[0] == '--needs'
    name, *options = arguments[only_needs:] or ['']
    if name not in found:
        print(f"NAME = {name}: must be one of {', '.join(found)}.", file=sys.stderr)
        return 2
    if only_needs:
        print(*found[name].needs)
        return 0
    return run(found[name], options)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
