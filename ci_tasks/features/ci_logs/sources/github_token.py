"""The token for GitHub: from the environment, or from the program gh. Its value is never printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import field

from ci_tasks import known_secrets
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.ci_logs.sources.github_url import GitHubUrl

_CLOUD_VARIABLES = ("GH_TOKEN", "GITHUB_TOKEN")
_ENTERPRISE_VARIABLES = ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
_GH_TIMEOUT = 15.0  # seconds; it may ask a keyring, which may ask the person


@dataclass(frozen=True)
class GitHubToken:
    """`source` is the variable, or gh, that it is from."""

    value: str = field(repr=False)
    source: str


def token_variables(url: GitHubUrl) -> tuple[str, ...]:
    """The variables that hold a token for the host of `url`. No host gets a token that is meant for another."""
    return _CLOUD_VARIABLES if url.is_github_cloud else _ENTERPRISE_VARIABLES


def find_token(url: GitHubUrl) -> GitHubToken | None:
    """Raises UsageError where a variable holds something that cannot be a token."""
    for name in token_variables(url):
        value = os.environ.get(name, "").strip()
        if value:
            return _token(value, name)
    value = _gh_auth_token(url.host)
    return _token(value, "gh") if value else None


def _token(value: str, source: str) -> GitHubToken:
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise UsageError(f"the value of {source} is no token: it contains blanks or control characters")
    known_secrets.add([value])
    return GitHubToken(value, source)


def _gh_auth_token(host: str) -> str:
    program = shutil.which("gh")
    if not program:
        return ""
    try:
        result = subprocess.run(
            [program, "auth", "token", "--hostname", host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GH_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("ascii", "replace").strip() if result.returncode == 0 else ""
