"""Pulling images on a host before any row needs them: what is under way, and an end within bounded time.

`docker pull` waits for its daemon for ever and prints nothing meanwhile. So a small program on the host watches it and
ends it, whether or not anybody is still connected; and a thread here says how it stands.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.containers.run_containers import DAEMON_QUERY, QUERY_SECONDS
from ci_tasks.agent.containers.runtimes import qualified_image
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.executor import Say
from ci_tasks.hosts.queries import QueryRunner, python_query

PULL_TIMEOUT_S = 2 * 3600.0  # an image of 30 GB over a slow line
DAEMON_TIMEOUT_S = 600.0  # without any answer; a daemon that is restarted is back sooner
DAEMON_QUERY_TIMEOUT_S = QUERY_SECONDS
POLL_INTERVAL_S = 10.0
REPORT_INTERVAL_S = 60.0  # between two lines that say the same
_SLACK_S = 60.0
_DAEMON_SILENT = 199  # an exit code that docker and podman do not have
_DAEMON = "daemon"

_PULL = """\
import subprocess, sys, time
pull_timeout, daemon_timeout, query_timeout, interval = map(float, sys.argv[1:5])
silent_exit, query, pull = int(sys.argv[5]), sys.argv[6].split(), sys.argv[7:]
runtime = pull[0]
try:
    process = subprocess.Popen(pull)
except OSError as error:
    sys.exit("%s: %s" % (runtime, error.strerror))
begun = answered = time.monotonic()
while process.poll() is None:
    nothing = subprocess.DEVNULL
    try:
        subprocess.run([runtime] + query, stdin=nothing, stdout=nothing, stderr=nothing, timeout=query_timeout)
        answered = time.monotonic()
    except subprocess.TimeoutExpired:
        pass
    now = time.monotonic()
    if now - answered > daemon_timeout or now - begun > pull_timeout:
        process.kill()
        if now - answered > daemon_timeout:
            print("%s has not answered for %.0f s" % (runtime, now - answered), file=sys.stderr)
            sys.exit(silent_exit)
        sys.exit("not pulled within %.0f min" % (pull_timeout / 60))
    try:
        process.wait(interval)
    except subprocess.TimeoutExpired:
        pass
sys.exit(process.returncode)
"""


class DaemonSilent(CiTasksError):
    """No row that needs a container can run there."""


def can_pull(spec: HostSpec) -> bool:
    return spec.runtime in ("docker", "podman") and spec.pull != "never"


def pull_images(
    host: QueryRunner, spec: HostSpec, images: Sequence[str], note: Callable[[str], None], say: Say
) -> Mapping[str, QueryAnswer]:
    """Pull `images`, and return how each pull ended. `note` is called with how it stands whenever that is known, `say`
    now and then. Raises DaemonSilent."""
    ended = threading.Event()
    threading.Thread(target=_report, args=(host, spec, images, note, say, ended), daemon=True).start()
    try:
        answers = host.run_queries(
            {image: pull_command(spec, image) for image in images}, PULL_TIMEOUT_S + DAEMON_TIMEOUT_S + _SLACK_S
        )
    finally:
        ended.set()
    for image, answer in answers.items():
        if answer.code == _DAEMON_SILENT:
            raise DaemonSilent(f"{answer.last_line}, while it was to pull {image}; is its daemon hung?")
    return answers


def pull_command(spec: HostSpec, image: str) -> list[str]:
    full_name = qualified_image(image) if spec.runtime == "podman" else image
    limits = (PULL_TIMEOUT_S, DAEMON_TIMEOUT_S, DAEMON_QUERY_TIMEOUT_S, POLL_INTERVAL_S)
    pull = (spec.runtime, "pull", "--quiet", full_name)
    return python_query(_PULL, *map(str, limits), str(_DAEMON_SILENT), " ".join(DAEMON_QUERY), *pull)


def _report(
    host: QueryRunner,
    spec: HostSpec,
    images: Sequence[str],
    note: Callable[[str], None],
    say: Say,
    ended: threading.Event,
) -> None:
    begun = answered = said = time.monotonic()
    was_silent = False
    while not ended.wait(POLL_INTERVAL_S):
        asked = time.monotonic()
        try:
            answer = host.run_queries({_DAEMON: [spec.runtime, *DAEMON_QUERY]}, DAEMON_QUERY_TIMEOUT_S)[_DAEMON]
        except CiTasksError:
            return  # whoever waits for the pull hears of it
        if ended.is_set():
            return
        now = time.monotonic()
        answered = answered if answer.timed_out else now
        is_silent = answered < asked
        if is_silent:
            text = f"{spec.runtime} has not answered for {_roughly(now - answered)}; {_pulling(images)}"
        else:
            text = f"{_pulling(images)} for {_roughly(now - begun)}"
        note(text)
        if is_silent != was_silent or now - said >= REPORT_INTERVAL_S:
            say(f"{spec.runtime} answers again; {text}" if was_silent and not is_silent else text)
            said = now
        was_silent = is_silent


def _pulling(images: Sequence[str]) -> str:
    return f"pulling {', '.join(images)}"


def _roughly(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
