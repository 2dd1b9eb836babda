"""What was found, in the form of the findings of a run."""
from typing import Any, Dict, List, NamedTuple, Optional

Finding = Dict[str, Any]  # ``cause``, ``message`` and figures


class Found(NamedTuple):
    """What a part of the examination tells."""
    lines: List[str]  # what was looked at
    findings: List[Finding]
    # For a trial: the form of right completions, None if they are worth no more than wrong ones, their mean reward, and
    # the seconds of a score.
    form: Optional[str] = None
    reward: float = 0.0
    seconds: float = 0.0
    examined: bool = True  # whether anything was looked at


def finding(cause: str, message: str, **figures: Any) -> Finding:
    return dict(cause=cause, message=message, **figures)


def share(part: int, whole: int) -> str:
    return f'{part:,} of {whole:,}'
