"""How long to wait before asking GitHub again, by its answer; as its documentation of rate limits asks of clients.

429, or 403 of a limit    Retry-After; else until x-ratelimit-reset where nothing remains; else 60 s, doubling
5xx, a broken connection  Retry-After; else 1 s, doubling, a few times
anything else             not at all: the answer will be the same
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

MOST_SECONDS = 300.0  # that a command waits in all before it gives up
MOST_TRIES = 5  # of what is not a limit
_SECONDARY = 60.0
_WORDS = ("secondary rate limit", "abuse detection", "rate limit exceeded")


@dataclass(frozen=True)
class Limit:
    """A rate limit. `seconds` until it may be over; `known` says that GitHub named the time."""

    seconds: float
    known: bool


def limit_of(status: int, headers: Mapping[str, str], message: str, tries: int, now: float) -> Limit | None:
    """The limit that an answer speaks of, after `tries` others. `now` is by our clock, for want of the server's."""
    exhausted = headers.get("x-ratelimit-remaining") == "0"
    after = _retry_after(headers, now)
    spoken = any(word in message.lower() for word in _WORDS)
    if not (status == 429 or (status == 403 and (exhausted or spoken or after is not None))):
        return None
    if after is not None:
        return Limit(after, True)
    reset = _number(headers.get("x-ratelimit-reset"))
    if exhausted and reset is not None:
        return Limit(max(reset - _server_time(headers, now), 0) + 1, True)
    return Limit(_SECONDARY * 2**tries, False)


def pause_of(status: int | None, headers: Mapping[str, str], tries: int, now: float) -> float | None:
    """Seconds to wait after trouble of the server's, or of the connection (`status` None); None to give up."""
    if status not in (None, 500, 502, 503, 504) or tries + 1 >= MOST_TRIES:
        return None
    after = _retry_after(headers, now)
    return float(2**tries) if after is None else after


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds, or a date, of which nothing is left once it has passed."""
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _number(value)
    if seconds is not None:
        return max(seconds, 0)
    until = _date(value)
    return None if until is None else max(until - _server_time(headers, now), 0)


def _server_time(headers: Mapping[str, str], now: float) -> float:
    """By the clock that made the other times, so that a wrong one here does not matter."""
    said = _date(headers.get("date", ""))
    return now if said is None else said


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    try:
        found = float(value or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
