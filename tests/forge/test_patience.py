"""How long to wait for GitHub, by its answer."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.forge.patience import MOST_SECONDS, MOST_TRIES, Limit, limit_of, pause_of

NOW = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # the same moment


@pytest.mark.parametrize(
    ("status", "headers", "message", "tries", "limit"),
    [
        (429, {"retry-after": "7"}, "", 0, Limit(7, True)),
        (403, {"retry-after": "7"}, "", 0, Limit(7, True)),
        (429, {"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, "", 0, Limit(30, True)),
        (429, {"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, "", 0, Limit(0, True)),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 40)}, "", 0, Limit(41, True)),
        (403, {}, "You have exceeded a secondary rate limit.", 0, Limit(60, False)),
        (403, {}, "You have exceeded a secondary rate limit.", 2, Limit(240, False)),
        (429, {"retry-after": "soon"}, "", 0, Limit(60, False)),
        (429, {"retry-after": "nan"}, "", 0, Limit(60, False)),
        (429, {"retry-after": "-5"}, "", 0, Limit(0, True)),
        (403, {"x-ratelimit-remaining": "12"}, "Must have admin rights to Repository.", 0, None),
        (404, {"x-ratelimit-remaining": "0"}, "", 0, None),
        (503, {"retry-after": "7"}, "", 0, None),
    ],
)
def test_a_limit_is_over_when_github_says_so(
    status: int, headers: dict[str, str], message: str, tries: int, limit: Limit | None
) -> None:
    assert limit_of(status, {"date": DATE, **headers}, message, tries, NOW + 1000) == limit, "by GitHub's clock"
    assert limit_of(status, headers, message, tries, NOW) == limit


@pytest.mark.parametrize(
    ("status", "headers", "tries", "seconds"),
    [
        (None, {}, 0, 1),
        (502, {}, 3, 8),
        (503, {"retry-after": "20"}, 0, 20),
        (503, {}, MOST_TRIES - 1, None),
        (None, {}, MOST_TRIES - 1, None),
        (501, {}, 0, None),
        (404, {}, 0, None),
        (401, {"retry-after": "1"}, 0, None),
    ],
)
def test_trouble_is_waited_for_a_few_times(status: Any, headers: Any, tries: int, seconds: float | None) -> None:
    assert pause_of(status, headers, tries, NOW) == seconds


def test_a_limit_of_which_github_says_nothing_is_waited_for_more_than_once() -> None:
    waits = [found.seconds for tries in range(3) if (found := limit_of(429, {}, "", tries, NOW))]
    assert sum(waits[:2]) < MOST_SECONDS < sum(waits)
