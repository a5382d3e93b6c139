"""CI's `docker run` on a host without containers (`runtime: none`, a person already inside the image).

What runs instead: the inner command, its environment, and what is lost. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..words import Deviation, deviation
from .docker_argv import DockerArgvError, DockerRun
from .mounts import mounted, moved
from .rules import NONE, Rules

# What a container would have of its own, or what this machine needs to reach the network: kept when there is none.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
_BASE_NAMES = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TZ", "TMPDIR", "VIRTUAL_ENV", "SSL_CERT_FILE")
    + _PROXIES
    + tuple(name.upper() for name in _PROXIES)
)
_BASE_PREFIXES = ("LC_", "CI_TASKS_", "PIP_")

# Options that act on the inner command without a container too, or that say nothing about what the test sees.
_NO_LOSS = frozenset(
    ("env", "env-file", "entrypoint", "workdir", "volume", "mount", "interactive")
    + ("name", "label", "label-file", "rm", "tty", "init", "pull", "quiet")
)


def inner_command(run: DockerRun) -> list[str]:
    """What would run inside the container, as far as it can be known without the image."""
    words = named_command(run)
    if not words:
        raise DockerArgvError(
            f"the command of {run.image} is unknown without the image; docker run names none, "
            "and the host's runtime is none"
        )
    return words


def named_command(run: DockerRun) -> list[str]:
    """The words that the run itself names: its entrypoint and command, empty where both are the image's own."""
    entrypoint = run.last("entrypoint")
    return ([entrypoint] if entrypoint else []) + list(run.command)


def inner_environment(
    run: DockerRun, rules: Rules, environ: Mapping[str, str], env_file: Callable[[str], Iterable[str]]
) -> dict[str, str]:
    """As in a container: a base, and exactly what `--env-file` (lines from `env_file`), `-e` and the rules give."""
    base = {name: value for name, value in environ.items() if name in _BASE_NAMES or name.startswith(_BASE_PREFIXES)}
    return {**base, **given_environment(run, rules, environ, env_file)}


def given_environment(
    run: DockerRun, rules: Rules, environ: Mapping[str, str], env_file: Callable[[str], Iterable[str]]
) -> dict[str, str]:
    """What `--env-file` (its lines from `env_file`), `-e` and the rules give, on top of the image's own."""
    found: dict[str, str] = {}
    given = [line for path in run.values("env-file") for line in _entries(path, env_file(path))]
    for entry in given + run.values("env"):  # Docker too lets `-e` win over the files, whatever the order
        name, equals, value = entry.partition("=")
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return {**found, **rules.env}


def bare_deviations(run: DockerRun, rules: Rules, exists: Callable[[str], bool]) -> list[Deviation]:
    """What is lost without a container."""
    said = [
        deviation(
            "container", run.image, NONE, "hosts.yaml runtime: none; files, user and packages are this machine's own"
        )
    ]
    for item in run.options:
        source, destination = mounted(item)
        if destination and not exists(destination):
            here = moved(source, rules.mounts) or source
            said.append(
                deviation(f"mount {destination}", f"{source} at {destination}", "absent", f"{here} is not mounted")
            )
    lost = list(dict.fromkeys("--" + item.name for item in run.options if item.name not in _NO_LOSS))
    if lost:
        said.append(deviation("container flags", " ".join(lost), "no effect", "there is no container"))
    return said


def _entries(path: str, lines: Iterable[str]) -> list[str]:
    """The entries of an `--env-file`: no quoting, `#` starts a comment line, a bare NAME is taken from here."""
    entries = [line.lstrip() for line in lines]
    entries = [entry for entry in entries if entry and not entry.startswith("#")]
    for entry in entries:
        name = entry.partition("=")[0]
        if not name or any(letter.isspace() for letter in name):
            raise DockerArgvError(f"{path}: {name!r} is no variable's name")
    return entries
