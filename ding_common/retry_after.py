"""How long a server asks to wait."""
import math
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Optional


def retry_after(headers: Any) -> Optional[float]:
    """Seconds from now that the header Retry-After asks for, a number or a date; None without one that is either."""
    value = headers.get('Retry-After') if hasattr(headers, 'get') else None
    for read in (float, _until):
        try:
            seconds = read(str(value))
        except (TypeError, ValueError, OverflowError):  # neither a number nor a date with a zone
            continue
        if not math.isnan(seconds):
            return max(seconds, 0.)
    return None


def _until(date: str) -> float:
    return (parsedate_to_datetime(date) - datetime.now(timezone.utc)).total_seconds()
