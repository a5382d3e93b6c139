"""Which hosts.yaml files count: the built-in hosts, the user's file, the current directory's, CI_TASKS_HOSTS. Below
each of them are the files that it includes: another file, such as a lab's, or the one of a git repository.

A file in the checkout under test is written by the author of the checkout. It counts after the user has trusted its
content, which our state directory remembers by its hash, and then only its overrides.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ci_tasks import resources, safe_output
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import BUILT_IN_LAYER, Config, ConfigLayer, includes, read_layers
from ci_tasks.errors import CheckoutError, ConfigError, UsageError, printable
from ci_tasks.hosts.mux import KeptConnection, kept_connections
from ci_tasks.run.checkout_source import current_checkout, find_checkout

HOSTS_ENV = "CI_TASKS_HOSTS"
_NAME = "hosts.yaml"
_ADDRESS = r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:"  # of a git repository; all else is a path
_LOGIN = r"https?://[^/\s]*@|[a-z][a-z0-9+.-]*://[^/\s@]*:[^/\s]*@"
_FRESH_S, _FETCH_S = 3600.0, 20.0  # for how long a copy counts, and how long a fetch may take


@dataclass(frozen=True)
class ListedHost:
    """A host as `hosts --json` shows it: its fields are the keys. `sources` has the file and the line of each key that
    is set. `kept` is the process that keeps a connection to it for the next command."""

    name: str
    kind: str
    address: str | None
    runtime: str
    gpus: int | None
    simulate: bool
    pools: list[str]
    sources: dict[str, str]
    kept: KeptConnection | None = None


def open_config(*checkouts: str | Path | None, quiet: bool = False) -> Config:
    """All layers as one. `checkouts` are those under test; None is the one that a command without --repo finds.
    Prints what does not count, unless `quiet`. Raises ConfigError."""
    layers, notices = [BUILT_IN_LAYER], []
    for file in _files():
        content, text = _read(file)
        layer = ConfigLayer(text, resources.shown(file), overrides_only=_in_checkout(file, checkouts or (None,)))
        if layer.overrides_only and not _trust_record(content).exists():
            notices.append(
                f"{layer.file} is part of the checkout and ignored, because it is not trusted yet. "
                "Read it, then `ci-tasks hosts --trust` applies its overrides"
            )
            continue
        if not layer.overrides_only:
            layers += [_included(name, file, notices, checkouts) for name in includes(layer)]
        layers.append(layer)
    config = read_layers(layers)
    safe_output.add_secrets(os.environ.get(name, "") for host in config.hosts.values() for name in host.secrets)
    for notice in (*notices, *config.notices) if not quiet else ():
        print(f"ci-tasks: {printable(notice)}", file=sys.stderr, flush=True)
    return config


def _included(name: str, file: Path, notices: list[str], checkouts: Sequence[str | Path | None]) -> ConfigLayer:
    """What `file` includes, which includes nothing itself. Raises ConfigError."""
    path = file.resolve().parent / Path(name).expanduser()
    is_address = re.match(_ADDRESS, name) is not None
    label = safe_output.masked_with_forms(name) if is_address else resources.shown(path)
    if re.match(_LOGIN, name):  # git would pass it on as an argument, which every user of this machine can read
        raise ConfigError("include must not contain a login", file=label, hint="git's credential helper may have it")
    if not is_address and _in_checkout(path, checkouts or (None,)):
        hint = f"copy it next to {resources.shown(file)}"
        raise ConfigError("it is part of the checkout, which may only set overrides", file=label, hint=hint)
    layer = ConfigLayer(_fetched(name, label, notices) if is_address else _read(path)[1], label)
    if includes(layer):
        hint = f"{resources.shown(file)} may"
        raise ConfigError("an included file cannot include another", file=layer.file, hint=hint)
    return layer


def _fetched(address: str, label: str, notices: list[str]) -> str:
    """The hosts.yaml of a git repository: a copy of the last hour, a new one, or else the last one, with a notice."""
    from ci_tasks.agent.git import make_repository
    from ci_tasks.checkout.repository import CheckoutGit

    store = resources.user_directory("cache") / "include" / _digest(os.fsencode(address))
    copy = store / _NAME
    age = time.time() - copy.stat().st_mtime if copy.exists() else None
    if age is None or age > _FRESH_S:
        make_repository(str(store))
        git = CheckoutGit(store).with_user_settings()
        git.timeout = _FETCH_S
        (store / "shallow.lock").unlink(missing_ok=True)  # of one that was killed
        try:
            git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--", address, "HEAD")
            content = git.run("show", f"FETCH_HEAD:{_NAME}")
            read_layers([BUILT_IN_LAYER, ConfigLayer(_decoded(content, label), label)])  # no broken one replaces it
            replace_file(str(copy), content)
        except (CheckoutError, ConfigError) as error:
            problem = " ".join(safe_output.masked_with_forms(error.message).split())
            if age is None and isinstance(error, ConfigError):
                raise
            if age is None:
                hint = f"it needs network access once, and a {_NAME} at its root"
                raise ConfigError(f"cannot be included: {problem}", file=label, hint=hint) from None
            notices.append(f"{label} was not updated: its copy of {age / 3600:.0f} h ago counts; {problem}")
    return _read(copy)[1]


def config_for_run(name: str) -> Config:
    """As `open_config`, for a command about runs: what they tested is under test, wherever one comes back to them."""
    from ci_tasks.agent.run_directory import read_plan
    from ci_tasks.results import store

    paths: list[str] = []
    with suppress(UsageError, OSError, ValueError):  # no such run, or none of this machine
        paths = [read_plan(run).checkout.path for _, run in store.find(name)]
    return open_config(*(Path(path) for path in dict.fromkeys(paths) if path), None)


def trust(checkout: str | None) -> tuple[str, str]:
    """Trust the content of the checkout's file from now on. Returns its path and its text. Raises UsageError."""
    files = [file for file in _files() if _in_checkout(file, (checkout,))]
    if not files:
        message = "no hosts.yaml of a checkout is used here, so `--trust` has no effect"
        hint = "it must be in the current directory and in the checkout; --repo sets the checkout"
        raise UsageError(message, hint=hint)
    content, text = _read(files[0])
    resources.make_home()
    record = _trust_record(content)
    record.parent.mkdir(mode=0o700, exist_ok=True)
    record.write_text(f"{files[0].resolve()}\n", encoding="utf-8", errors="surrogateescape")
    return resources.shown(files[0]), text


def list_hosts(config: Config) -> list[ListedHost]:
    """The hosts of hosts.yaml, as `hosts --json` shows them."""
    kept = {connection.address: connection for connection in kept_connections()}
    return [
        ListedHost(
            *(host.name, host.kind, host.address, host.runtime, host.gpus, host.simulate),
            pools=[pool for pool, members in config.pools.items() if host.name in members],
            sources=dict(config.sources.get(host.name, {})),
            kept=kept.get(host.address or host.name),
        )
        for host in config.hosts.values()
    ]


def _files() -> Iterator[Path]:
    """The files that are there, the later ones over the earlier; each once. Raises ConfigError."""
    named = os.environ.get(HOSTS_ENV)
    files = [resources.users_hosts(), Path(_NAME), *([Path(named).expanduser()] if named else [])]
    if named and not files[-1].is_file():
        raise ConfigError("no such file", file=str(files[-1]), hint=f"{HOSTS_ENV} names it")
    places = {file.resolve(): file for file in files if file.is_file()}  # one that is named twice keeps its first place
    yield from places.values()


def _in_checkout(file: Path, checkouts: Sequence[str | Path | None]) -> bool:
    """Whether the file, or a link to it, is in one of the checkouts, or in the current directory's checkout."""
    places = (Path(os.path.abspath(file)), file.resolve())
    return any(place.is_relative_to(directory) for directory in _directories(checkouts) for place in places)


def _directories(checkouts: Sequence[str | Path | None]) -> Iterator[Path]:
    for checkout in checkouts:
        try:
            yield checkout.resolve() if isinstance(checkout, Path) else find_checkout(checkout)[0]
        except CheckoutError:  # it will be an error of its own, or none is needed
            continue
    if here := current_checkout():
        yield here


def _trust_record(content: bytes) -> Path:
    return resources.home() / "trusted" / _digest(content)


def _digest(content: bytes) -> str:
    import hashlib  # and OpenSSL with it, for the few who have such a file

    return hashlib.sha256(content).hexdigest()


def _read(file: Path) -> tuple[bytes, str]:
    """The content of a file, and its text. Raises ConfigError."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from None
    return content, _decoded(content, str(file))


def _decoded(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x}"
        raise ConfigError(f"not UTF-8: {byte}", file=file, line=line, hint="save it as UTF-8") from None
