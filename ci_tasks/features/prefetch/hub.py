"""What is of a repository on the hub, what of it is on a host, and `hf download` of what is missing.

One request says which files a repository has now, and their sizes. The host's Python says which of them are there.
Downloads are one run on the host: in the rows' own container, or in none.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
import shlex
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ci_tasks import safe_output
from ci_tasks.agent.docker_argv import DockerRun
from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import one_line, printable
from ci_tasks.hosts.executor import Executor, PreparedRow, Say
from ci_tasks.hosts.queries import parse_json_object, python_query
from ci_tasks.hosts.runs import RunState
from ci_tasks.planning.containers import HOME, filled
from ci_tasks.planning.script import part

MODEL, DATASET = "model", "dataset"
MAIN = "main"
THERE, MISSING = "there", "missing"
_DEFAULT = "https://huggingface.co"
_TOKEN = "set HF_TOKEN to a token with access, or run `hf auth login`"
_LONGEST = 100_000  # characters of one argument; Linux allows 128 KiB
# How many bytes are missing of files with these sizes, whether none or all are there, and whether the content is known
# to be the commit's. With --local-dir huggingface_hub has DIR/FILE, and below DIR/.cache/huggingface/download
# FILE.metadata of three lines: commit, etag, and the time at which both were true. In its cache, snapshots/COMMIT/FILE
# is of that commit.
_SCRIPT = """
import base64, json, os, sys, zlib
top, below, commit, files = json.loads(zlib.decompress(base64.b64decode("".join(sys.argv[1:]))))
top, missing, sure = os.path.expanduser(top), [], True
for name, size in files.items():
    path = os.path.join(top, below, name)
    if not os.path.isfile(path) or os.path.getsize(path) != size:
        missing.append(size)
        continue
    try:
        with open(os.path.join(top, ".cache", "huggingface", "download", name + ".metadata")) as source:
            of, etag, when = source.read().split()
        sure = sure and of == commit and os.path.getmtime(path) - 1 <= float(when)
    except (OSError, ValueError):
        sure = sure and bool(below)
mount = os.path.realpath(top)
while not os.path.ismount(mount):
    mount = os.path.dirname(mount)
disk = os.statvfs(mount)
state = "missing" if len(missing) == len(files) else "there" if sure and not missing else "partly"
print(json.dumps({"state": state, "mount": mount, "free": disk.f_bavail * disk.f_frsize, "missing": sum(missing)}))
"""


@dataclass(frozen=True)
class HubRepository:
    """A repository, and the directory that the test has it in, as the test names it. Files are there as in the
    repository, or `in_cache` as in the hub's own cache."""

    kind: str
    id: str
    directory: str
    in_cache: bool = False
    revision: str = MAIN

    @property
    def name(self) -> str:
        """Unlike for a model and a dataset of one id."""
        return f"{self.id} (dataset)" if self.kind == DATASET else self.id


class HubError(NamedTuple):
    """What keeps a repository from us. No text holds a token, or an address with a signature in it."""

    problem: str
    message: str
    hint: str


@dataclass(frozen=True)
class Listing:
    """The files of a repository with their bytes, at the commit that its revision means now.
    `closed`: why they are not given to us, which does not matter if all of them are on the host."""

    commit: str
    files: Mapping[str, int]
    needs_token: bool = False
    closed: HubError | None = None


class Hub:
    """One hub, with one token, which is nowhere but in its requests."""

    def __init__(self, host_env: Mapping[str, str]) -> None:
        from huggingface_hub import HfApi, get_token

        self.endpoint = (host_env.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or _DEFAULT).rstrip("/")
        self.variables = {"HF_ENDPOINT": self.endpoint} if self.endpoint != _DEFAULT else {}  # of a download
        self.token = get_token()
        safe_output.add_secrets([self.token] if self.token else [])
        self._api: Any = HfApi(endpoint=self.endpoint, token=self.token or False, library_name="ci-tasks")
        parts = urlsplit(self.endpoint)
        self.shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a password

    def find(self, repository: HubRepository) -> Listing | HubError:
        about = {"repo_type": repository.kind}
        try:
            info = self._api.repo_info(repository.id, revision=repository.revision, files_metadata=True, **about)
        except Exception as error:
            return self._problem(error, repository)
        files = {str(file.rfilename): int(file.size or 0) for file in info.siblings or ()}
        closed = None
        try:
            if info.gated:
                self._api.auth_check(repository.id, **about)
        except Exception as error:
            closed = self._problem(error, repository)
        return Listing(str(info.sha), files, bool(info.private or info.gated), closed)

    def _problem(self, error: Exception, repository: HubRepository) -> HubError:
        from huggingface_hub import errors

        name = repository.name
        page = f"{self.shown}/{'datasets/' if repository.kind == DATASET else ''}{repository.id}"
        if isinstance(error, errors.GatedRepoError):
            why = "the token has no access" if self.token else "no token was sent"
            return HubError("gated", f"{name} is gated, and {why}", f"accept its terms at {page}, and {_TOKEN}")
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status in (401, 404) or isinstance(error, errors.HFValidationError):
            why = "the token is not accepted" if status == 401 and self.token else "not found"
            return HubError("not found", f"{name}: {why}", f"check the name at {page}; if it is private, {_TOKEN}")
        hint = "check the network and HTTPS_PROXY; HF_ENDPOINT names a mirror; a token (HF_TOKEN) raises rate limits"
        why = f"status {status}" if status else type(error).__name__
        return HubError("offline", f"{self.shown} does not answer: {one_line(why)}", hint)


# -- on the host -------------------------------------------------------------------------------------------------------


def files_query(repository: HubRepository, directory: str, listing: Listing) -> list[str]:
    """The question for the host's Python, how a repository's files are there. The answer has fields of
    RepositoryStatus: `state`, `mount`, `free` and `missing`."""
    folder = "--".join([f"{repository.kind}s", *repository.id.split("/")])
    inside = f"snapshots/{listing.commit}"
    top, below = (posixpath.join(directory, folder), inside) if repository.in_cache else (directory, "")
    query = json.dumps([top, below, listing.commit, listing.files])
    text = base64.b64encode(zlib.compress(query.encode())).decode()
    return python_query(_SCRIPT, *(text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)))


def host_state(answer: QueryAnswer) -> dict[str, str | int] | None:
    """The answer to `files_query`, None if it cannot be read."""
    said = parse_json_object(answer)
    kinds = {"state": str, "mount": str, "free": int, "missing": int}
    return said if {name: type(value) for name, value in said.items()} == kinds else None


# -- the download ------------------------------------------------------------------------------------------------------

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
    """Run it to its end, which a ^C brings first. `names` are the downloads' names; `say` hears them, and from time to
    time the last words of the program."""
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
