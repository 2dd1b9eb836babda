"""The program that compares expressions by ``math-verify``, see ``Servers``."""
from math_verify import parse, verify


def same(*texts: str) -> bool:
    gold, guess = (parse(f'${text}$', parsing_timeout=None) for text in texts)
    return bool(gold) and bool(guess) and bool(verify(gold, guess, timeout_seconds=None))
