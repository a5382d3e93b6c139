"""How long GitHub's rate limits last, by its responses."""

from __future__ import annotations

import pytest

from ci_tasks.features.ci_logs.sources.github_client import rate_limit_delay
from tests.features.ci_logs.sources.github_server import FakeTime

NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("status", "headers", "message", "attempt", "delay"),
    [
        (429, {"retry-after": "7"}, "", 0, 7),
        (429, {"retry-after": "Tue, 14 Nov 2000 22:00:00 GMT"}, "", 0, 0),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 40)}, "", 0, 41),
        (403, {}, "You have exceeded a secondary rate limit.", 0, 60),
        (403, {}, "You have exceeded a secondary rate limit.", 2, 240),
        (429, {"retry-after": "soon"}, "", 0, 60),
        (403, {"x-ratelimit-remaining": "12"}, "Must have admin rights to Repository.", 0, None),
        (404, {"x-ratelimit-remaining": "0"}, "", 0, None),
    ],
)
def test_a_limit_is_over_when_github_says_so(
    clock: FakeTime, status: int, headers: dict[str, str], message: str, attempt: int, delay: float | None
) -> None:
    assert rate_limit_delay(status, headers, message, attempt) == delay
