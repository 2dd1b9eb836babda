"""
Print the extra ``docs`` of setup.py, one requirement a line. The pages are built from the sources without importing
them, so that their environment needs neither torch nor DI-engine, which ``pip install .[docs]`` would bring.
"""
import ast
import os

SETUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'setup.py')


def main() -> None:
    with open(SETUP, encoding='utf-8') as f:
        tree = ast.parse(f.read())
    extras = next(k.value for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == 'extras_require')
    print('\n'.join(ast.literal_eval(extras)['docs']))


if __name__ == '__main__':
    main()
