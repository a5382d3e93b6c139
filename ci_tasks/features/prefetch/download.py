"""`hf download` for what is missing, as one run on the host: in the rows' own container, or in none.

The text of the run's script and what its log says are pure; `run_downloads` is the run itself.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.prefetch.hub_errors import RepoSnapshot
from ci_tasks.features.prefetch.inventory import cache_name
from ci_tasks.features.prefetch.repositories import CACHE, DATASET
from ci_tasks.features.prefetch.requirements import RequiredRepository
from ci_tasks.hosts.executor import Executor, PreparedRow, Say
from ci_tasks.hosts.remote_run import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

# What a container of the row's needs for a download, and nothing of its GPUs.
_KEPT = ("volume", "mount", "network", "user", "pull", "add-host", "dns")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_PASSED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *(name.upper() for name in _PROXIES))
_POLL_SECONDS = 0.05
_PROGRESS_SECONDS = 0.5  # seconds between two looks at the log
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
    """A repository that is to come; `number` names it in the log. `container` is what its first row runs in, with the
    variables `env` for its options; None where rows run in no container."""

    number: int
    item: RequiredRepository
    snapshot: RepoSnapshot
    container: DockerRun | None
    env: Mapping[str, str]


class Progress(Protocol):
    """Is told which download is under way, and the last words of its program."""

    def __call__(self, number: int, message: str) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a download ended: the exit code of its program, None where it has none, and its output."""

    code: int | None
    output: str


def script(downloads: Sequence[Download], venv: str, env_names: Sequence[str]) -> str:
    """The run's script: `venv` is the directory for one where there is no `hf`, `env_names` are variables that the
    downloads get in a container too."""
    groups: dict[str, list[Download]] = {}
    for item in downloads:
        groups.setdefault(_docker(item, env_names), []).append(item)
    parts = [
        "#!/usr/bin/env bash",
        "# Models and data sets that the rows will ask for. Secrets come from the environment.",
        "set -uo pipefail",
        'CI_TASKS_RUN_DIR=$(CDPATH=\'\' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)',
        "export CI_TASKS_RUN_DIR HF_HUB_OFFLINE=0 HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_UPDATE_CHECK=1",
        f"_exit_code=0\n{_FUNCTIONS}",
    ]
    calls = []
    for number, (docker, group) in enumerate(groups.items()):
        where = "/tmp/ci-tasks-huggingface" if docker else _word(venv)
        parts += [
            f"group_{number}() {{",
            f"  find_hf {where}",
            *(f"  download {_arguments(item)}" for item in group),
            "}",
        ]
        calls.append(f"{docker} group_{number} || _exit_code=1" if docker else f"group_{number}")
    parts += [
        'if [ -n "${1:-}" ]; then "$1"; exit "$_exit_code"; fi',
        part("ADAPTER_CHECK") + part("ADAPTER"),
        *calls,
        'exit "$_exit_code"',
    ]
    return "\n".join(parts) + "\n"


def _docker(item: Download, env_names: Sequence[str]) -> str:
    """The script again, in the container; empty where there is none."""
    run = item.container
    if run is None:
        return ""
    kept = [(option.name, filled(option.value or "", item.env)) for option in run.options if option.name in _KEPT]
    options = [f"--{name}={value}" for name, value in kept if "$" not in value]
    options += [word for name in dict.fromkeys((*_PASSED, *env_names)) for word in ("-e", name)]
    quoted = " ".join(shlex.quote(word) for word in options)
    mount = '-v "$CI_TASKS_RUN_DIR:$CI_TASKS_RUN_DIR"'
    return f'docker run --rm {quoted} {mount} --entrypoint bash {shlex.quote(run.image)} "$CI_TASKS_RUN_DIR/run.sh"'


def _arguments(item: Download) -> str:
    """The arguments of `download`. Files are named where the test wants a part: patterns were read differently by
    each generation of the program."""
    repository = item.item.what
    path = repository.directory if item.container else item.item.place.path or ""
    if item.container and path.split("/")[0] == "~":
        path = HOME + path[1:]
    where = _word(path)
    top = f"{where}/{shlex.quote(cache_name(repository))}" if repository.layout == CACHE else where
    arguments = [str(item.number), top, shlex.quote(repository.id)]
    if repository.include or repository.exclude:
        arguments += [shlex.quote(file.path) for file in item.snapshot.files]
    arguments += ["--repo-type", "dataset"] if repository.kind == DATASET else []
    arguments += ["--revision", shlex.quote(repository.revision)]
    return " ".join([*arguments, "--cache-dir" if repository.layout == CACHE else "--local-dir", where])


def _word(path: str) -> str:
    """For bash; `~` is whoever's home runs it."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def outcomes(log: str) -> dict[int, Outcome]:
    """By number, what the log says of each download."""
    results: dict[int, Outcome] = {}
    marks = list(_MARK.finditer(log))
    for mark, after in zip_longest(marks, marks[1:]):
        number = int(mark[1])
        if mark[2] is not None:
            begun = results.get(number, Outcome(None, ""))
            results[number] = Outcome(int(mark[2]), begun.output)
        else:
            results[number] = Outcome(None, log[mark.end() : after.start() if after else len(log)])
    return results


def run_downloads(
    executor: Executor, row: PreparedRow, say: Say, progress: Progress, is_wanted: Callable[[], bool]
) -> RunState:
    """Run it to its end; a ^C ends it first."""
    tail = _LogTail(row.run.log)
    try:
        executor.start(row)
        last_progress = time.monotonic()
        while not (now := executor.poll(row)).is_over:
            if not is_wanted():
                raise KeyboardInterrupt
            executor.wait(_POLL_SECONDS)
            for line in executor.drain_messages():
                say(line)
            if time.monotonic() > last_progress + _PROGRESS_SECONDS:
                last_progress = time.monotonic()
                _report_progress(tail, progress)
        _report_progress(tail, progress)
        return now
    except KeyboardInterrupt:
        _cancel(executor, row)
        raise


def _report_progress(tail: _LogTail, progress: Progress) -> None:
    for number, message in tail.read_new():
        progress(number, message)


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


class _LogTail:
    """What a log says anew: which downloads began, and the last words of the one under way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._number: int | None = None
        self._line = ""  # without its end yet

    def read_new(self) -> Iterator[tuple[int, str]]:
        try:
            with open(self._path, "rb") as source:
                source.seek(self._offset)
                chunk = source.read()
        except OSError:
            return
        self._offset += len(chunk)
        *lines, self._line = re.split(r"[\r\n]+", self._line + chunk.decode(errors="replace"))
        message = ""
        for line in lines:
            mark = _MARK.match(line)
            if mark:
                self._number, message = (None if mark[2] else int(mark[1])), ""
                if self._number is not None:
                    yield self._number, ""
            else:
                message = line.strip() or message
        if self._number is not None and (message or self._line.strip()):
            yield self._number, self._line.strip() or message
