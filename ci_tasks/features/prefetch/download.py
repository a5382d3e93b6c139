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
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

# What a container of the row's needs for a download, and nothing of its GPUs.
_KEPT = ("volume", "mount", "network", "user", "pull", "add-host", "dns")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *(name.upper() for name in _PROXIES))
_POLL_SECONDS = 0.05
_EVERY_S = 10.0  # between two lines that say how far a download is
_MARK = re.compile(r"^##\[ci-tasks\] download (\d+) (?:begins|ended (\d+))\r?$", re.MULTILINE)

# `hf` of the host or image; older ones have huggingface-cli.
_FUNCTIONS = r"""
find_hf() {
  _hf=$(command -v hf || command -v huggingface-cli) && return
  echo "neither hf nor huggingface-cli is on PATH: install huggingface_hub there"
  exit 125
}

# download NUMBER DIRECTORY WORDS…: what a killed download left, and nobody has written to for an hour, goes first.
download() {
  local _number=$1 _code=0
  find "$2" -name '*.incomplete' -mmin +60 -delete 2> /dev/null
  echo "##[ci-tasks] download $_number begins"
  "$_hf" download "${@:3}" 2>&1 || _code=$?
  printf '\n##[ci-tasks] download %s ended %s\n' "$_number" "$_code"
  [ "$_code" = 0 ] || _exit_code=1
}
"""


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
    groups: dict[str, list[Download]] = {}
    for item in downloads:
        groups.setdefault(_docker(item, env_names), []).append(item)
    functions, calls = [], []
    for number, (docker, group) in enumerate(groups.items()):
        own = "".join(f"  download {_arguments(item)}\n" for item in group)
        functions.append(f"group_{number}() {{\n  find_hf\n{own}}}\n")
        calls.append(f"{docker} group_{number} || _exit_code=1" if docker else f"group_{number}")
    return f"""#!/usr/bin/env bash
# Models and data sets that the rows will ask for. Secrets come from the environment.
set -uo pipefail
CI_TASKS_RUN_DIR=$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd -P)
export CI_TASKS_RUN_DIR HF_HUB_OFFLINE=0 HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_UPDATE_CHECK=1
_exit_code=0
{_FUNCTIONS}
{"".join(functions)}
if [ -n "${{1:-}}" ]; then "$1"; exit "$_exit_code"; fi
{part("ADAPTER_CHECK")}{part("ADAPTER")}
{chr(10).join(calls)}
exit "$_exit_code"
"""


def _docker(item: Download, env_names: Sequence[str]) -> str:
    """The script again, in the container; "" for none."""
    run = item.container
    if run is None:
        return ""
    kept = [(option.name, filled(option.value or "", item.env)) for option in run.options if option.name in _KEPT]
    options = [f"--{name}={value}" for name, value in kept if "$" not in value]
    options += [word for name in dict.fromkeys((*_PASSED, *env_names)) for word in ("-e", name)]
    mount = '-v "$CI_TASKS_RUN_DIR:$CI_TASKS_RUN_DIR"'
    image = shlex.quote(run.image)
    return f'docker run --rm {shlex.join(options)} {mount} --entrypoint bash {image} "$CI_TASKS_RUN_DIR/run.sh"'


def _arguments(item: Download) -> str:
    """The arguments of `download`."""
    repository, path = item.repository, item.directory
    if item.container:
        path = repository.directory
        path = HOME + path[1:] if path.split("/")[0] == "~" else path
    where = _word(path)
    arguments = [str(item.number), f"{where}/{shlex.quote(repository.folder)}" if repository.in_cache else where]
    arguments.append(shlex.quote(repository.id))
    arguments += ["--repo-type", "dataset"] if repository.kind == DATASET else []
    arguments += ["--revision", shlex.quote(repository.revision)]
    return " ".join([*arguments, "--cache-dir" if repository.in_cache else "--local-dir", where])


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
    executor: Executor,
    row: PreparedRow,
    names: Sequence[str],
    say: Say,
    is_wanted: Callable[[], bool],
) -> RunState:
    """Run it to its end, which a ^C brings first. `names` are those of the downloads; `say` hears which one is under
    way, and the last words of its program."""
    try:
        executor.start(row)
        said, number = 0.0, -1
        while not (now := executor.poll(row)).is_over:
            if not is_wanted():
                raise KeyboardInterrupt
            executor.wait(_POLL_SECONDS)
            for line in executor.drain_messages():
                say(printable(line))
            if time.monotonic() > said + _EVERY_S or number < 0:
                number = _say_progress(row, names, say)
                said = time.monotonic() if number >= 0 else said
        if number < 0:
            _say_progress(row, names, say)
        return now
    except KeyboardInterrupt:
        _cancel(executor, row)
        raise


def _say_progress(row: PreparedRow, names: Sequence[str], say: Say) -> int:
    """Returns the number of the download that is under way, -1 before the first."""
    results = outcomes(content_of(row.run.log).decode("utf-8", "replace"))
    for number, (_, line) in [*results.items()][-1:]:
        say(f"fetching {names[number]}{f': {line}' if line else ''}")
    return max(results, default=-1)


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
