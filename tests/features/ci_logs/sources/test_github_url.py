"""Addresses of GitHub's pages and API, as people copy them."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.ci_logs.sources.github_url import GitHubUrl, api_base, parse_url

SHA = "0123456789abcdef0123456789abcdef01234567"


# Relative ones are below the repository's page.
URLS: list[tuple[str, dict[str, Any]]] = [
    ("actions/runs/123", {"run": 123}),
    (" https://github.com/THUDM/slime/actions/runs/123?pr=45\n", {"run": 123, "pull": 45}),
    ("actions/runs/123/job/9#step:4:56", {"run": 123, "job": 9}),
    ("actions/runs/123/attempts/2", {"run": 123, "attempt": 2}),
    ("pull/45", {"pull": 45}),
    ("pull/45/checks?check_run_id=9", {"pull": 45, "job": 9}),
    (f"pull/45/commits/{SHA}", {"commit": SHA}),
    (f"commit/{SHA}/checks/9", {"commit": SHA, "job": 9}),
    ("github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://api.github.com/repos/THUDM/slime/actions/jobs/9/logs", {"job": 9}),
    ("https://somebody:ghp_secret@github.com/THUDM/slime/pull/45", {"pull": 45}),
    ("https://git.corp.example:8443/THUDM/slime/pull/45", {"host": "git.corp.example:8443", "pull": 45}),
    ("https://corp.ghe.com/THUDM/slime/pull/45", {"host": "corp.ghe.com", "pull": 45}),
    ("https://api.corp.ghe.com/repos/THUDM/slime/actions/runs/1", {"host": "corp.ghe.com", "run": 1}),
]
NO_URLS = [
    "",
    "ftp://github.com/THUDM/slime/pull/45",
    "https://github.com/THUDM/slime",
    "https://github.com/THUDM/../actions/runs/1",
    "failed.log",
]


def test_an_address_names_what_it_shows_and_what_is_none_is_refused_with_the_forms_that_are() -> None:
    slime = {"host": "github.com", "owner": "THUDM", "repo": "slime"}
    for url, expected in URLS:
        whole = url if "github.com" in url or "//" in url else f"https://github.com/THUDM/slime/{url}"
        assert parse_url(whole) == GitHubUrl(**{**slime, **expected}), url
    for url in NO_URLS:
        with pytest.raises(UsageError) as caught:
            parse_url(url)
        assert "/actions/runs/RUN/job/JOB" in caught.value.hint, url


def test_no_login_or_query_of_an_address_is_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("https://me:ghp_secret@github.com/THUDM?token=ghp_secret")
    assert "ghp_secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "override", "base"),
    [
        ("github.com", "", "https://api.github.com"),
        ("git.corp:8443", "", "https://git.corp:8443/api/v3"),
        ("corp.ghe.com", "", "https://api.corp.ghe.com"),
        ("github.com", "http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("git.corp", "https://mirror.corp/api/v3", "https://mirror.corp/api/v3"),
        # Set on every runner; another host's token must not go there.
        ("git.corp", "https://api.github.com", "https://git.corp/api/v3"),
    ],
)
def test_where_the_api_of_a_host_is(host: str, override: str, base: str) -> None:
    assert api_base(host, override) == base


@pytest.mark.parametrize("override", ["api.github.com", "ssh://host/api", "https://me:ghp_secret@host", "http://["])
def test_an_override_that_is_no_address_is_named_without_its_login(override: str) -> None:
    with pytest.raises(UsageError, match="GITHUB_API_URL") as caught:
        api_base("github.com", override)
    assert "ghp_secret" not in str(caught.value)
