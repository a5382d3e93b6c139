"""`hf download` for what is missing, as one run on the host: in the rows' own container, or in none."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.files import content_of
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import printable
from ci_tasks.features.prefetch.hub import DATASET, HubRepository
from ci_tasks.hosts.executor import Executor, PreparedRow, Say
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

# What a container of the row's needs for a download, and nothing of its GPUs.
_KEPT = ("volume", "mount", "network", "user", "pull", "add-host", "dns")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *(name.upper() for name in _PROXIES))
_POLL_SECONDS = 0.05
_EVERY_S = 10.0  # between two of its lines that are shown
_MARK = r"^##\[ci-tasks\] download "
_DOWNLOAD = re.compile(rf"{_MARK}(\d+) begins\r?$(.*?)(?:{_MARK}\1 ended (\d+)\r?$|\Z)", re.MULTILINE | re.DOTALL)

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


def script(commands: Sequence[str]) -> str:
    """The run's script, in which `commands` have the numbers 0, 1, … Secrets come from its environment."""
    calls = [f"download {number} {command}" for number, command in enumerate(commands)]
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


def command(
    repository: HubRepository, directory: str, container: DockerRun | None = None,
    env: Mapping[str, str] | None = None, env_names: Sequence[str] = (),
) -> str:  # fmt: skip
    """`hf download`, for bash, of a repository into `directory` of the host: by the host's own `hf`, or in what the
    first row runs in, whose options have variables of `env`. It gets the variables `env_names` there too."""
    program = "hf"
    if container is not None:
        kept = [(each.name, filled(each.value or "", env or {})) for each in container.options if each.name in _KEPT]
        options = [f"--{name}={value}" for name, value in kept if "$" not in value]
        options += [word for name in dict.fromkeys((*_PASSED, *_ONLINE, *env_names)) for word in ("-e", name)]
        program = shlex.join(["docker", "run", "--rm", *options, "--entrypoint", "hf", container.image])
        directory = re.sub("^~(?=/|$)", HOME, repository.directory)
    arguments = ["download", repository.id, *(["--repo-type", "dataset"] if repository.kind == DATASET else [])]
    arguments += ["--revision", repository.revision, "--cache-dir" if repository.in_cache else "--local-dir"]
    return f"{program} {shlex.join(arguments)} {_word(directory)}"


def _word(path: str) -> str:
    """For bash; `~` is the home of the account that runs it."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def outcomes(run: RunDir) -> dict[int, tuple[int | None, str]]:
    """By number, the exit code of each download that began (None: it has none), and its error or last line."""
    results: dict[int, tuple[int | None, str]] = {}
    for number, text, code in _DOWNLOAD.findall(content_of(run.log).decode("utf-8", "replace")):
        lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        errors = [line for line in lines if re.search(r"\b\w*Error\b", line)]
        results[int(number)] = int(code) if code else None, printable([*errors, *lines[-1:], ""][0])
    return results


def run_downloads(
    executor: Executor, row: PreparedRow, names: Sequence[str], say: Say, is_wanted: Callable[[], bool]
) -> RunState:
    """Run it to its end, which a ^C brings first. `names` are those of the downloads; `say` hears them, and from time
    to time the last words of the program."""
    for name in names:
        say(f"fetching {name}")
    said = time.monotonic()
    try:
        executor.start(row)
        while not (now := executor.poll(row)).is_over:
            if not is_wanted():
                raise KeyboardInterrupt
            executor.wait(_POLL_SECONDS)
            for line in executor.drain_messages():
                say(printable(line))
            if time.monotonic() > said + _EVERY_S:
                said = time.monotonic()
                for number, (_, line) in [*outcomes(row.run).items()][-1:]:
                    say(f"{names[number]}: {line}")
        return now
    except KeyboardInterrupt:
        _cancel(executor, row)
        raise


def _cancel(executor: Executor, row: PreparedRow) -> None:
    """After a ^C with patience, after the next without, and then without its end."""
    for kill in (False, True, True):
        executor.cancel([row], kill=kill)
        with suppress(KeyboardInterrupt):
            while not executor.poll(row).is_over:
                executor.wait(_POLL_SECONDS)
            return
