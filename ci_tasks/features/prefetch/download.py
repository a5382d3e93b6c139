"""`hf download` for what is missing, as one run on the host: in the rows' own container, or in none."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.features.prefetch.repositories import DATASET, HubRepository
from ci_tasks.hosts.executor import Executor, PreparedRow, Say
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

# What a container of the row's needs for a download, and nothing of its GPUs.
_KEPT = ("volume", "mount", "network", "user", "pull", "add-host", "dns")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *(name.upper() for name in _PROXIES))
_POLL_SECONDS = 0.05
_EVERY_S = 10.0  # between two lines that say how far a download is
_MARK = re.compile(r"^##\[ci-tasks\] download (\d+) (?:begins|ended (\d+))\r?$", re.MULTILINE)

# download NUMBER COMMAND…
_FUNCTION = r"""
download() {
  local _number=$1 _code=0
  echo "##[ci-tasks] download $_number begins"
  "${@:2}" 2>&1 || _code=$?
  printf '\n##[ci-tasks] download %s ended %s\n' "$_number" "$_code"
  [ "$_code" = 0 ] || _exit_code=1
}
"""
# The row may have asked the library to stay offline.
_ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True)
class Download:
    """A repository that is to come to `directory` of the host; `number` names it in the log. `container` is what its
    first row runs in, with the variables `env` for its options; None for none."""

    number: int
    repository: HubRepository
    directory: str
    container: DockerRun | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def script(downloads: Sequence[Download], env_names: Sequence[str]) -> str:
    """The run's script: `env_names` are variables that the downloads get in a container too. Secrets come from its
    environment."""
    calls = [f"download {item.number} {_program(item, env_names)} {_arguments(item)}" for item in downloads]
    return f"""#!/usr/bin/env bash
# Models and data sets that the rows will ask for. Secrets come from the environment.
set -uo pipefail
CI_TASKS_RUN_DIR=$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd -P)
export CI_TASKS_RUN_DIR {" ".join(f"{name}={value}" for name, value in _ONLINE.items())}
_exit_code=0
{_FUNCTION}
{part("ADAPTER_CHECK")}{part("ADAPTER")}
{chr(10).join(calls)}
exit "$_exit_code"
"""


def _program(item: Download, env_names: Sequence[str]) -> str:
    """`hf` of the row's image, or of the host."""
    run = item.container
    if run is None:
        return "hf"
    kept = [(option.name, filled(option.value or "", item.env)) for option in run.options if option.name in _KEPT]
    options = [f"--{name}={value}" for name, value in kept if "$" not in value]
    options += [word for name in dict.fromkeys((*_PASSED, *_ONLINE, *env_names)) for word in ("-e", name)]
    return shlex.join(["docker", "run", "--rm", *options, "--entrypoint", "hf", run.image])


def _arguments(item: Download) -> str:
    repository, path = item.repository, item.directory
    if item.container:
        path = repository.directory
        path = HOME + path[1:] if path.split("/")[0] == "~" else path
    arguments = ["download", repository.id]
    arguments += ["--repo-type", "dataset"] if repository.kind == DATASET else []
    arguments += ["--revision", repository.revision, "--cache-dir" if repository.in_cache else "--local-dir"]
    return f"{shlex.join(arguments)} {_word(path)}"


def _word(path: str) -> str:
    """For bash; `~` is the home of the account that runs it."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def outcomes(log: str) -> dict[int, tuple[int | None, str]]:
    """By number, the exit code of each download that began (None: it has none), and its error or last
    line."""
    results: dict[int, tuple[int | None, str]] = {}
    _, *pieces = _MARK.split(log)  # number, code or None, the text after it
    for number, code, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        if code is None:
            errors = [line for line in lines if re.search(r"\b\w*Error\b", line)]
            results[int(number)] = None, printable([*errors, *lines[-1:], ""][0])
        else:
            results[int(number)] = int(code), results.get(int(number), (None, ""))[1]
    return results


def run_downloads(
    executor: Executor, row: PreparedRow, names: Sequence[str], say: Say, is_wanted: Callable[[], bool]
) -> RunState:
    """Run it to its end, which a ^C brings first. `names` are those of the downloads; `say` hears which one is under
    way, and the last words of its program."""
    try:
        executor.start(row)
        said = -_EVERY_S
        while True:
            now = executor.poll(row)
            if now.is_over or time.monotonic() > said + _EVERY_S:
                said = time.monotonic() if _say_progress(row, names, say) else said
            if now.is_over:
                return now
            if not is_wanted():
                raise KeyboardInterrupt
            executor.wait(_POLL_SECONDS)
            for line in executor.drain_messages():
                say(printable(line))
    except KeyboardInterrupt:
        _cancel(executor, row)
        raise


def _say_progress(row: PreparedRow, names: Sequence[str], say: Say) -> bool:
    """Whether a download has begun."""
    results = outcomes(content_of(row.run.log).decode("utf-8", "replace"))
    for number, (_, line) in [*results.items()][-1:]:
        say(f"fetching {names[number]}{f': {line}' if line else ''}")
    return bool(results)


def _cancel(executor: Executor, row: PreparedRow) -> None:
    """After a ^C with patience, after the next without, and then without its end."""
    for kill in (False, True, True):
        executor.cancel([row], kill=kill)
        try:
            while not executor.poll(row).is_over:
                executor.wait(_POLL_SECONDS)
            return
        except KeyboardInterrupt:
            continue
