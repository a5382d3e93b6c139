"""Pulling images on a host before any row needs them: what is under way, and an end within bounded time.

`docker pull` waits for its daemon for ever and prints nothing meanwhile. So `timeout` ends it on the host, whether or
not a client is still connected, and the daemon is asked now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.containers.rewrite import qualified_image
from ci_tasks.agent.containers.run_containers import DAEMON_QUERY, QUERY_SECONDS
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.background import Background
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.prepared_row import Say
from ci_tasks.hosts.queries import QueryRunner

PULL_TIMEOUT_S = 2 * 3600.0  # an image of 30 GB over a slow line
DAEMON_TIMEOUT_S = 600.0  # without any answer; a daemon that is restarted is back sooner
DAEMON_QUERY_TIMEOUT_S = QUERY_SECONDS
POLL_INTERVAL_S = 10.0
REPORT_INTERVAL_S = 60.0  # between two lines for the user
_SLACK_S = 60.0
_PULL = 'timeout -k 10 "$@" || { code=$?; [ $code != 124 ] || echo "not pulled within $1 s" >&2; exit $code; }'


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

    def pull() -> Mapping[str, QueryAnswer]:
        try:
            commands = {image: pull_command(spec, image) for image in images}
            return host.run_queries(commands, PULL_TIMEOUT_S + _SLACK_S)
        finally:
            ended.set()

    pulling = Background(pull)
    begun = answered = said = time.monotonic()
    while not ended.wait(POLL_INTERVAL_S):
        query = {"daemon": [spec.runtime, *DAEMON_QUERY]}
        is_silent = host.run_queries(query, DAEMON_QUERY_TIMEOUT_S)["daemon"].timed_out
        now = time.monotonic()
        answered = answered if is_silent else now
        silence = f"{spec.runtime} has not answered for {now - answered:.0f} s"
        text = f"pulling {', '.join(images)} for {now - begun:.0f} s" + (f"; {silence}" if is_silent else "")
        if now - answered > DAEMON_TIMEOUT_S:
            raise DaemonSilent(f"{text}; is its daemon hung?")
        note(text)
        if now - said >= REPORT_INTERVAL_S:
            say(text)
            said = now
    return pulling.result()


def pull_command(spec: HostSpec, image: str) -> list[str]:
    full_name = qualified_image(image) if spec.runtime == "podman" else image
    return ["sh", "-c", _PULL, "pull", f"{PULL_TIMEOUT_S:.0f}", spec.runtime, "pull", "--quiet", full_name]
