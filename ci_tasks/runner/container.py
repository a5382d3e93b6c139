"""What becomes of CI's `docker run` on this host: the same run under other rules, and a name for every difference. Pure.

The rules are the `container` object of plan.json. `rewrite` serves docker and podman; for a host without containers
(`runtime: none`, a person already inside the image) `inner_command`, `inner_environment` and `bare_deviations` say what
runs instead. A secret never stands in an argv: `rewrite` leaves `-e NAME`, and `client_environment` says what NAME is.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Dict

from .docker_argv import DockerArgvError, DockerRun, Option, option

DOCKER = "docker"
PODMAN = "podman"
NONE = "none"
RUNTIMES = (DOCKER, PODMAN, NONE)
PULLS = ("always", "missing", "never")

Deviation = Dict[str, str]

_SOURCE_KEYS = ("source", "src")
_DESTINATION_KEYS = ("target", "dst", "destination")
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(?P<head>(?:-[A-Za-z]*?e=?|--[a-z-]+=)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)(?P<value>.+)", re.DOTALL
)
_MASK = "***"

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


class RulesError(ValueError):
    """plan.json's `container` object says something that cannot be."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How this host wants its containers; see `from_plan` for where each comes from."""

    runtime: str = DOCKER
    pull: str | None = None
    image: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # values may be secrets
    volumes: tuple[str, ...] = ()

    @classmethod
    def from_plan(cls, value: Any) -> Rules:
        """The rules in plan.json's `container`; what is absent or null keeps its default."""
        if not isinstance(value, dict):
            raise RulesError(f"container: an object is needed, not {value!r}")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in value:
            if key not in known:
                nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
                raise RulesError(f"container: unknown key {key!r}; the nearest is {nearest!r}")
        given = {key: item for key, item in value.items() if item is not None}
        for key in ("image", "mounts", "labels", "env"):
            _check_mapping(key, given.get(key, {}))
        volumes = given.pop("volumes", [])
        _check_volumes(volumes)
        rules = cls(volumes=tuple(volumes), **given)
        _check_choice("runtime", rules.runtime, RUNTIMES)
        _check_choice("pull", rules.pull, (None, *PULLS))
        if rules.name is not None and not isinstance(rules.name, str):
            raise RulesError(f"container: name: text is needed, not {rules.name!r}")
        _check_mounts(rules.mounts)
        return rules

    def name_of(self, nth: int) -> str | None:
        """The name of the run's `nth` container, counted from 1."""
        return self.name if self.name is None or nth == 1 else f"{self.name}-{nth}"


def rewrite(run: DockerRun, rules: Rules, nth: int = 1) -> tuple[DockerRun, list[Deviation]]:
    """CI's run as this host runs it, the `nth` of its script, and what differs."""
    said: list[Deviation] = []
    run = _keep_secrets_off(run, said)
    run = _remap(run, rules.mounts, said)
    run = _use_pull(run, rules.pull, said)
    run = _use_image(run, rules.image, said)
    run = _use_name(run, rules.name_of(nth), said)
    run = _add_labels(run, rules.labels, said)
    run = _add_init(run, said)
    run = _add_env(run, rules.env, said)
    run = _add_volumes(run, rules.volumes, said)
    if rules.runtime == PODMAN:
        run = _for_podman(run, said)
    return run, said


def client_environment(run: DockerRun, rules: Rules) -> dict[str, str]:
    """The values behind the `-e NAME` that `rewrite` writes, for the environment of the docker client."""
    return {**dict(_secret(item) for item in run.options if _is_secret(item)), **rules.env}


def bind_sources(run: DockerRun) -> list[str]:
    """The host paths that the run mounts. A `-v` source that is no path is a named volume."""
    sources = [_mounted(item)[0] for item in run.options if item.name in ("volume", "mount")]
    return [source for source in sources if source.startswith(("/", "."))]


def inner_command(run: DockerRun) -> list[str]:
    """What would run inside the container, as far as it can be known without the image."""
    entrypoint = run.last("entrypoint")
    words = ([entrypoint] if entrypoint else []) + list(run.command)
    if not words:
        raise DockerArgvError(
            f"the command of {run.image} is unknown without the image; docker run names none, and the host's runtime is none"
        )
    return words


def inner_environment(
    run: DockerRun, rules: Rules, environ: Mapping[str, str], env_file: Callable[[str], Iterable[str]]
) -> dict[str, str]:
    """As in a container: a base, and exactly what `--env-file` (lines from `env_file`), `-e` and the rules give."""
    base = {name: value for name, value in environ.items() if name in _BASE_NAMES or name.startswith(_BASE_PREFIXES)}
    given = [line for path in run.values("env-file") for line in _entries(path, env_file(path))]
    for entry in given + run.values("env"):  # Docker too lets `-e` win over the files, whatever the order
        name, equals, value = entry.partition("=")
        if equals:
            base[name] = value
        elif name in environ:
            base[name] = environ[name]
    return {**base, **rules.env}


def bare_deviations(run: DockerRun, rules: Rules, exists: Callable[[str], bool]) -> list[Deviation]:
    """What is lost without a container."""
    said = [
        _deviation(
            "container", run.image, NONE, "hosts.yaml runtime: none; files, user and packages are this machine's own"
        )
    ]
    for item in run.options:
        source, destination = _mounted(item)
        if destination and not exists(destination):
            here = _moved(source, rules.mounts) or source
            said.append(
                _deviation(f"mount {destination}", f"{source} at {destination}", "absent", f"{here} is not mounted")
            )
    lost = list(dict.fromkeys("--" + item.name for item in run.options if item.name not in _NO_LOSS))
    if lost:
        said.append(_deviation("container flags", " ".join(lost), "no effect", "there is no container"))
    return said


def masked(words: Sequence[str]) -> list[str]:
    """The words with secrets hidden, fit to be shown: the value of `-e HF_TOKEN=…`, a password of `docker login`."""
    shown: list[str] = []
    for at, word in enumerate(words):
        if at and "login" in words[:at] and words[at - 1] in ("-p", "--password"):
            word = _MASK
        elif "login" in words[:at] and word.startswith("--password="):
            word = "--password=" + _MASK
        found = _ASSIGNMENT.match(word)
        shown.append(found["head"] + _MASK if found and _SECRET_NAME.search(found["name"]) else word)
    return shown


# -- the parts of rewrite, in its order ------------------------------------------------------------------------------


def _keep_secrets_off(run: DockerRun, said: list[Deviation]) -> DockerRun:
    """Any user of the machine can read an argv, so a secret's value goes through the environment instead."""
    secrets = [_secret(item)[0] for item in run.options if _is_secret(item)]
    for name in secrets:
        said.append(_deviation(f"env {name}", f"-e {name}={_MASK}", f"-e {name}", "a secret never stands in an argv"))
    return _each(run, lambda item: item.with_value(_secret(item)[0]) if _is_secret(item) else item)


def _remap(run: DockerRun, mounts: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    def remapped(item: Option) -> Option:
        source, _ = _mounted(item)
        here = _moved(source, mounts)
        if here is None or here == source:
            return item
        said.append(_deviation(f"mount {source}", source, here, "hosts.yaml mounts"))
        return _with_source(item, here)

    return _each(run, remapped)


def _use_pull(run: DockerRun, pull: str | None, said: list[Deviation]) -> DockerRun:
    given = run.last("pull")
    if pull is None or given == pull:
        return run
    said.append(_deviation("pull", given or "missing (docker's default)", pull, "hosts.yaml pull"))
    return _replaced(run, "pull", pull)


def _use_image(run: DockerRun, images: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    here = images.get(run.image, run.image)
    if here == run.image:
        return run
    said.append(_deviation("image", run.image, here, "the plan names the image to run"))
    return dataclasses.replace(run, image=here)


def _use_name(run: DockerRun, name: str | None, said: list[Deviation]) -> DockerRun:
    given = run.last("name")
    if name is None or given == name:
        return run
    said.append(_deviation("name", given or "(none)", name, "so that ci-tasks can find and remove the container"))
    return _replaced(run, "name", name)


def _add_labels(run: DockerRun, labels: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    if not labels:
        return run
    words = [f"{key}={value}" for key, value in labels.items()]
    said.append(_deviation("labels", "(none)", " ".join(words), "so that leftovers of a run can be recognised"))
    return _added(run, *(option("label", word) for word in words))


def _add_init(run: DockerRun, said: list[Deviation]) -> DockerRun:
    if run.has("init"):
        return run
    said.append(_deviation("init", "(none)", "--init", "so that SIGTERM stops the container"))
    return _added(run, option("init"))


def _add_env(run: DockerRun, env: Mapping[str, str], said: list[Deviation]) -> DockerRun:
    if not env:
        return run
    said.append(_deviation("env", "(none)", " ".join(env), "what ci-tasks hands to the run; values are not shown"))
    return _added(run, *(option("env", name) for name in env))


def _add_volumes(run: DockerRun, volumes: Sequence[str], said: list[Deviation]) -> DockerRun:
    taken = {posixpath.normpath(_mounted(item)[1]) for item in run.options}
    new = [path for path in volumes if posixpath.normpath(path) not in taken]  # twice the same is an error to docker
    if not new:
        return run
    said.append(_deviation("volumes", "(none)", " ".join(new), "directories of the run that the job needs"))
    return _added(run, *(option("volume", f"{path}:{path}") for path in new))


def _for_podman(run: DockerRun, said: list[Deviation]) -> DockerRun:
    said.append(_deviation("runtime", DOCKER, PODMAN, "hosts.yaml runtime: podman"))
    if run.last("ipc") == "host" and run.has("shm-size"):
        size = f"--shm-size={run.last('shm-size')}"
        said.append(_deviation("shm-size", size, "(none)", "podman refuses it with --ipc=host, where it has no effect"))
        run = _without(run, "shm-size")
    if run.last("memory-swap") == "0":
        said.append(
            _deviation("memory-swap", "--memory-swap=0", "(none)", "podman refuses it; to docker it means unset")
        )
        run = _without(run, "memory-swap")
    gpus = run.last("gpus")
    if gpus is None:
        return run
    devices = [f"nvidia.com/gpu={gpu}" for gpu in _gpu_ids(gpus)]
    said.append(
        _deviation("gpus", f"--gpus {gpus}", " ".join(f"--device {d}" for d in devices), "podman takes GPUs by CDI")
    )
    return _added(_without(run, "gpus"), *(option("device", device) for device in devices))


# -- options ---------------------------------------------------------------------------------------------------------


def _deviation(what: str, ci: str, here: str, why: str) -> Deviation:
    return {"what": what, "ci": ci, "here": here, "why": why}


def _each(run: DockerRun, change: Callable[[Option], Option]) -> DockerRun:
    return dataclasses.replace(run, options=tuple(change(item) for item in run.options))


def _added(run: DockerRun, *new: Option) -> DockerRun:
    return dataclasses.replace(run, options=run.options + new)


def _without(run: DockerRun, name: str) -> DockerRun:
    return dataclasses.replace(run, options=tuple(item for item in run.options if item.name != name))


def _replaced(run: DockerRun, name: str, value: str) -> DockerRun:
    """Every such option with the new value, so that it does not matter which counts; one more where there is none."""
    if not run.has(name):
        return _added(run, option(name, value))
    return _each(run, lambda item: item.with_value(value) if item.name == name else item)


def _is_secret(item: Option) -> bool:
    name, equals, value = (item.value or "").partition("=")
    return item.name == "env" and bool(equals and value) and _SECRET_NAME.search(name) is not None


def _secret(item: Option) -> tuple[str, str]:
    name, _, value = (item.value or "").partition("=")
    return name, value


# -- mounts ----------------------------------------------------------------------------------------------------------


def _moved(source: str, mounts: Mapping[str, str]) -> str | None:
    """`source` under the longest rule that holds it; a rule holds its own path and what lies below, never `/mnt/x2`."""
    if not source.startswith("/"):
        return None
    path = _normal(source)
    rules = sorted(((_normal(ci), here) for ci, here in mounts.items()), key=lambda rule: -len(rule[0]))
    for ci, here in rules:
        if path == ci:
            return here
        below = ci.rstrip("/") + "/"
        if path.startswith(below):
            return posixpath.join(here, path[len(below) :])
    return None


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # normpath keeps a leading `//`


def _mounted(item: Option) -> tuple[str, str]:
    """Source and destination of a `-v` or a bind `--mount`; two empty texts where nothing of the host is mounted."""
    value = item.value or ""
    if item.name == "volume":
        parts = value.split(":")
        return (parts[0], parts[1]) if len(parts) > 1 else ("", "")
    if item.name != "mount":
        return "", ""
    fields = dict(_key_value(field) for field in _csv_fields(value))
    if fields.get("type", "").lower() != "bind":
        return "", ""
    return _first(fields, _SOURCE_KEYS), _first(fields, _DESTINATION_KEYS)


def _with_source(item: Option, source: str) -> Option:
    if item.name == "volume":
        return item.with_value(source + ":" + (item.value or "").partition(":")[2])
    fields = [
        f"{field.partition('=')[0]}={source}" if _key_value(field)[0] in _SOURCE_KEYS else field
        for field in _csv_fields(item.value or "")
    ]
    return item.with_value(_csv_text(fields))


def _first(fields: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((fields[key] for key in keys if key in fields), "")


def _key_value(field: str) -> tuple[str, str]:
    key, _, value = field.partition("=")
    return key.lower(), value


def _csv_fields(text: str) -> list[str]:
    """`--mount` and `--gpus` are one record of CSV, so that a path may hold a comma."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error as error:
        raise DockerArgvError(f"{text!r} is not the comma-separated text that docker needs: {error}") from None


def _csv_text(fields: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(fields)  # quotes what holds any character of the terminator
    return out.getvalue()[:-2]


def _gpu_ids(text: str) -> list[str]:
    """The GPUs that a `--gpus` value asks for, as the names after `nvidia.com/gpu=`."""
    ids: list[str] = []
    for field in _csv_fields(text):
        key, value = _key_value(field) if "=" in field else ("count", field)
        if key == "device":
            ids += value.split(",")
        elif key == "count":
            ids += ["all"] if value in ("all", "-1") else [str(gpu) for gpu in range(_whole(value, text))]
    return ids or ["all"]


def _whole(value: str, text: str) -> int:
    if not value.isdigit():
        raise DockerArgvError(f"--gpus {text!r}: {value!r} is neither a number nor all")
    return int(value)


# -- environment files and the checks of the rules -------------------------------------------------------------------


def _entries(path: str, lines: Iterable[str]) -> list[str]:
    """The entries of an `--env-file`: no quoting, `#` starts a comment line, a bare NAME is taken from here."""
    entries = [line.lstrip() for line in lines]
    entries = [entry for entry in entries if entry and not entry.startswith("#")]
    for entry in entries:
        name = entry.partition("=")[0]
        if not name or any(letter.isspace() for letter in name):
            raise DockerArgvError(f"{path}: {name!r} is no variable's name")
    return entries


def _check_mapping(key: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise RulesError(f"container: {key}: an object of texts is needed")  # its values may be secrets


def _check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        valid = ", ".join("null" if choice is None else choice for choice in choices)
        raise RulesError(f"container: {key}: {value!r} is not one of {valid}")


def _check_volumes(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise RulesError(f"container: volumes: a list of directories is needed, not {value!r}")
    for path in value:
        _check_path("volumes", path)


def _check_mounts(mounts: Mapping[str, str]) -> None:
    for ci, here in mounts.items():
        if not ci.startswith("/"):
            raise RulesError(f"container: mounts: {ci!r} is not an absolute path")
        _check_path("mounts", here)


def _check_path(key: str, path: str) -> None:
    if not path.startswith("/"):
        raise RulesError(f"container: {key}: {path!r} is not an absolute path")
    if ":" in path:
        raise RulesError(f"container: {key}: {path!r} holds a colon, which docker's -v cannot express")
