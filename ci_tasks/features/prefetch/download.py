"""`hf download` for what is missing, as one run on the host: in the rows' own container, or in none."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TextIO

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.features.prefetch.repositories import CACHE, DATASET, HubRepository
from ci_tasks.hosts.executor import Executor, PreparedRow
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

# What a container of the row's needs for a download, and nothing of its GPUs.
_KEPT = ("volume", "mount", "network", "user", "pull", "add-host", "dns")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *(name.upper() for name in _PROXIES))
_POLL_SECONDS = 0.05
_PROGRESS_SECONDS = 0.5  # seconds between two looks at the log
_EVERY_S = 10.0  # between two lines where nothing can be overwritten
_WIDEST = 110  # characters of a line that is overwritten
_TAIL = 4096  # bytes of a log in which its last line is looked for
_MARK = re.compile(r"^##\[ci-tasks\] download (\d+) (?:begins|ended (\d+))\r?$", re.MULTILINE)

# `hf` of the host or image; older ones have huggingface-cli; where there is neither, a venv of ours has it.
_FUNCTIONS = r"""
find_hf() {
  local _name
  for _name in hf huggingface-cli; do
    _hf=$(command -v "$_name") && return
  done
  echo "neither hf nor huggingface-cli is on PATH: using $1"
  mkdir -p -- "$(dirname -- "$1")" && exec 9> "$1.lock" || exit 125
  if command -v flock > /dev/null; then flock 9; fi
  if [ ! -f "$1/ready" ]; then
    python3 -m venv "$1" && "$1/bin/python" -m pip install --quiet --disable-pip-version-check huggingface_hub &&
      touch "$1/ready" || { echo "cannot install huggingface_hub into $1"; exit 125; }
  fi
  exec 9>&-
  for _name in hf huggingface-cli; do
    _hf=$1/bin/$_name; [ ! -x "$_hf" ] || return 0
  done
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
    """A repository that is to come to `directory` of the host; `number` names it in the log. `files` are those that the
    test wants. `container` is what its first row runs in, with the variables `env` for its options; None for none."""

    number: int
    repository: HubRepository
    directory: str
    files: Sequence[str]
    container: DockerRun | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def script(downloads: Sequence[Download], venv: str, env_names: Sequence[str]) -> str:
    """The run's script: `venv` is the directory for one where there is no `hf`, `env_names` are variables that the
    downloads get in a container too. Secrets come from its environment."""
    groups: dict[str, list[Download]] = {}
    for item in downloads:
        groups.setdefault(_docker(item, env_names), []).append(item)
    functions, calls = [], []
    for number, (docker, group) in enumerate(groups.items()):
        where = "/tmp/ci-tasks-huggingface" if docker else _word(venv)
        own = "".join(f"  download {_arguments(item)}\n" for item in group)
        functions.append(f"group_{number}() {{\n  find_hf {where}\n{own}}}\n")
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
    """The script again, in the container; empty where there is none."""
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
    """The arguments of `download`. Files are named where the test wants a part: patterns were read differently by
    each generation of the program."""
    repository, path = item.repository, item.directory
    if item.container:
        path = repository.directory
        path = HOME + path[1:] if path.split("/")[0] == "~" else path
    where, is_cache = _word(path), repository.layout == CACHE
    arguments = [str(item.number), f"{where}/{shlex.quote(repository.folder)}" if is_cache else where]
    arguments.append(shlex.quote(repository.id))
    if repository.include or repository.exclude:
        arguments += map(shlex.quote, item.files)
    arguments += ["--repo-type", "dataset"] if repository.kind == DATASET else []
    arguments += ["--revision", shlex.quote(repository.revision)]
    return " ".join([*arguments, "--cache-dir" if is_cache else "--local-dir", where])


def _word(path: str) -> str:
    """For bash; `~` is the home of the account that runs it."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def outcomes(log: str) -> dict[int, tuple[int | None, str]]:
    """By number, the exit code of each download that began (None: it has none), and its output."""
    results: dict[int, tuple[int | None, str]] = {}
    _, *pieces = _MARK.split(log)  # number, code or None, the text after it
    for number, code, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        results[int(number)] = (None, text) if code is None else (int(code), results.get(int(number), (None, ""))[1])
    return results


def run_downloads(
    executor: Executor,
    row: PreparedRow,
    say: Callable[[str], None],
    progress: Callable[[int, str], None],
    is_wanted: Callable[[], bool],
) -> RunState:
    """Run it to its end, which a ^C brings first. `progress` hears which download is under way, and its last words."""
    try:
        executor.start(row)
        looked, number = time.monotonic(), None
        while not (now := executor.poll(row)).is_over:
            if not is_wanted():
                raise KeyboardInterrupt
            executor.wait(_POLL_SECONDS)
            for line in executor.drain_messages():
                say(line)
            if time.monotonic() > looked + _PROGRESS_SECONDS:
                looked, number = time.monotonic(), _report(row.run.log, number, progress)
        _report(row.run.log, number, progress)
        return now
    except KeyboardInterrupt:
        _cancel(executor, row)
        raise


def _report(log: str, number: int | None, progress: Callable[[int, str], None]) -> int | None:
    """Say the last line of the log; `number` is the download that was under way before. Returns the one that is now."""
    tail = ""
    with suppress(OSError), open(log, "rb") as source:
        source.seek(max(0, source.seek(0, os.SEEK_END) - _TAIL))
        tail = source.read().decode(errors="replace")
    for mark in _MARK.finditer(tail):
        number = int(mark[1])
    lines = [line.strip() for line in re.split(r"[\r\n]+", tail) if line.strip()]
    if number is not None:
        progress(number, "" if not lines or _MARK.match(lines[-1]) else lines[-1])
    return number


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


class ProgressLine:
    """How far a download is: one line of a terminal that changes, else a line for each repository and now and then."""

    def __init__(self, out: TextIO | None, say: Callable[[str], None] | None = None) -> None:
        self._out, self._overwrites = out, bool(out and out.isatty())
        self._say = say or (lambda text: print(text, file=out, flush=True))
        self._name, self._said, self._is_open = "", 0.0, False

    def say(self, text: str) -> None:
        self.close()
        self._say(printable(text))

    def __call__(self, name: str, message: str) -> None:
        """`message` is what the downloading program said last."""
        text = printable(f"fetching {name}{f': {message}' if message else ''}")
        if self._out and self._overwrites:
            self._out.write(f"\r\x1b[K{text[:_WIDEST]}")
            self._out.flush()
            self._is_open = True
        elif name != self._name or time.monotonic() > self._said + _EVERY_S:
            self._name, self._said = name, time.monotonic()
            self._say(text)

    def close(self) -> None:
        """End the line that changes."""
        if self._is_open:
            print(file=self._out, flush=True)
            self._is_open = False
