"""CI's `docker run` on a host without containers (`runtime: none`, a person already inside the image).

The inner command runs instead: its argv, its environment, and what is lost. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..records import Deviation
from .docker_argv import DockerArgvError, DockerRun
from .mounts import bind_mount, map_path
from .rules import NONE, ContainerRules

# Variables that a container would have of its own, or that this machine needs to reach the network.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
_BASE_NAMES = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TZ", "TMPDIR", "SSL_CERT_FILE")
    + ("VIRTUAL_ENV", "PYTHONNOUSERSITE", "BASH_ENV")  # the row's venv stays in front in a login shell too
    + _PROXIES
    + tuple(name.upper() for name in _PROXIES)
)
_BASE_PREFIXES = ("LC_", "CI_TASKS_", "PIP_")

# Options that act on the inner command without a container too, or that say nothing about what the test sees.
_NO_EFFECT_ON_TESTS = frozenset(
    ("env", "env-file", "entrypoint", "workdir", "volume", "mount", "interactive")
    + ("name", "label", "label-file", "rm", "tty", "init", "pull", "quiet")
)


def container_command(run: DockerRun, runtime: str) -> list[str]:
    """The entrypoint and command that the run gives. Raises DockerArgvError where both are the image's own."""
    entrypoint = run.last("entrypoint")
    command = ([entrypoint] if entrypoint else []) + list(run.command)
    if not command:
        raise DockerArgvError(
            f"docker run has no command, and the default command of {run.image} is unknown without docker; "
            f"this host's runtime is {runtime}"
        )
    return command


def inner_environment(
    run: DockerRun, rules: ContainerRules, environ: Mapping[str, str], env_file: Callable[[str], Iterable[str]]
) -> dict[str, str]:
    """As in a container: basic variables, and those of `--env-file` (its lines from `env_file`), `-e` and the rules."""
    base = {name: value for name, value in environ.items() if name in _BASE_NAMES or name.startswith(_BASE_PREFIXES)}
    return {**base, **container_environment(run, rules, environ, env_file)}


def container_environment(
    run: DockerRun, rules: ContainerRules, environ: Mapping[str, str], env_file: Callable[[str], Iterable[str]]
) -> dict[str, str]:
    """The variables from `--env-file` (its lines from `env_file`), `-e` and the rules, on top of the image's own."""
    variables: dict[str, str] = {}
    entries = [line for path in run.values("env-file") for line in _entries(path, env_file(path))]
    for entry in entries + run.values("env"):  # in docker too, `-e` wins over the files, whatever the order
        name, equals, value = entry.partition("=")
        if equals:
            variables[name] = value
        elif name in environ:
            variables[name] = environ[name]
    return {**variables, **rules.env}


def bare_deviations(run: DockerRun, rules: ContainerRules, exists: Callable[[str], bool]) -> list[Deviation]:
    why = "hosts.yaml runtime: none; files, user and packages are this machine's own"
    deviations = [Deviation("container", run.image, NONE, why)]
    for item in run.options:
        source, destination = bind_mount(item)
        if destination and not exists(destination):
            here = map_path(source, rules.mounts) or source
            why = f"{here} is not mounted"
            deviations.append(Deviation(f"mount {destination}", f"{source} at {destination}", "absent", why))
    lost = list(dict.fromkeys("--" + item.name for item in run.options if item.name not in _NO_EFFECT_ON_TESTS))
    if lost:
        deviations.append(Deviation("container flags", " ".join(lost), "no effect", "there is no container"))
    return deviations


def _entries(path: str, lines: Iterable[str]) -> list[str]:
    """The entries of an `--env-file`: no quoting, `#` starts a comment line, a NAME without value takes the host's."""
    entries = [line.lstrip() for line in lines]
    entries = [entry for entry in entries if entry and not entry.startswith("#")]
    for entry in entries:
        name = entry.partition("=")[0]
        if not name or any(letter.isspace() for letter in name):
            raise DockerArgvError(f"{path}: {name!r} is not the name of a variable")
    return entries
