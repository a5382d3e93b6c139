"""Where a token is from, for which host, and that it is shown nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.ci_logs.sources import github_token
from ci_tasks.features.ci_logs.sources.github_url import GitHubUrl, parse_url

GITHUB = parse_url("https://github.com/o/r/pull/1")
TENANT = parse_url("https://corp.ghe.com/o/r/pull/1")
ENTERPRISE = parse_url("https://git.corp/o/r/pull/1")


def fake_gh(folder: Path, script: str) -> None:
    """A program gh that refuses words which the real one does not know."""
    gh = folder / "bin/gh"
    gh.write_text(
        f"#!{sys.executable}\nimport sys\nif sys.argv[1:4] != ['auth', 'token', '--hostname'] or len(sys.argv) != 5:\n"
        f"    sys.exit(f'unknown: {{sys.argv}}')\nhost = sys.argv[4]\n{script}\n"
    )
    gh.chmod(0o755)


@pytest.mark.parametrize(
    ("url", "environment", "source"),
    [
        (GITHUB, {"GH_TOKEN": "a", "GITHUB_TOKEN": "b"}, "GH_TOKEN"),
        (GITHUB, {"GH_TOKEN": " ", "GITHUB_TOKEN": "b\n"}, "GITHUB_TOKEN"),
        (TENANT, {"GH_TOKEN": "a", "GH_ENTERPRISE_TOKEN": "c"}, "GH_TOKEN"),
        (ENTERPRISE, {"GH_TOKEN": "a", "GH_ENTERPRISE_TOKEN": "c"}, "GH_ENTERPRISE_TOKEN"),
        (GITHUB, {}, None),
    ],
)
def test_a_token_goes_to_the_host_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, url: GitHubUrl, environment: dict[str, str], source: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    token = github_token.find_token(url)
    assert (token and token.source) == source
    assert not token or token.value == environment[source or ""].strip()


def test_gh_is_queried_for_the_exact_host(tmp_path: Path) -> None:
    fake_gh(tmp_path, "print(f'gho_for_{host}')")
    assert github_token.find_token(ENTERPRISE) == github_token.GitHubToken("gho_for_git.corp", "gh")


NO_LOGIN = ["print('none'); sys.exit(1)", "print()", "sys.stderr.write('no oauth token'); sys.exit(4)"]


def test_a_gh_without_a_login_gives_none_and_one_that_waits_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in NO_LOGIN:
        fake_gh(tmp_path, script)
        assert github_token.find_token(GITHUB) is None
    monkeypatch.setattr(github_token, "_GH_TIMEOUT", 0.05)
    fake_gh(tmp_path, "import time; time.sleep(60)")
    assert github_token.find_token(GITHUB) is None


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "secret" not in repr(github_token.GitHubToken("secret", "GH_TOKEN"))
    monkeypatch.setenv("GH_TOKEN", "very\nsecret")
    with pytest.raises(UsageError, match="GH_TOKEN") as caught:
        github_token.find_token(GITHUB)
    assert "secret" not in str(caught.value)
