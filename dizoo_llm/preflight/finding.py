"""What was found, in the form of the findings of a run."""
from typing import Any, Dict, List, NamedTuple, Optional

Finding = Dict[str, Any]  # ``cause``, ``message`` and figures


class Found(NamedTuple):
    """
    Overview:
        What a part of the examination tells: ``lines``, what was looked at, ``findings``, and what a trial needs: the
        ``form`` of right completions, None if they are worth no more than wrong ones, their mean ``reward``, and the
        ``seconds`` of a score. ``examined``: whether anything was looked at.
    """
    lines: List[str]
    findings: List[Finding]
    form: Optional[str] = None
    reward: float = 0.0
    seconds: float = 0.0
    examined: bool = True


def finding(cause: str, message: str, **figures: Any) -> Finding:
    return dict(cause=cause, message=message, **figures)


def share(part: int, whole: int) -> str:
    return f'{part:,} of {whole:,}'
