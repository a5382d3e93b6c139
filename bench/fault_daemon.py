"""The tests' own servers, of which dockerd serves one trial at a time, and how to wait for them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.parts import dockerd, proxy, registry  # noqa: E402

TIMEOUT_SECONDS = 60.0
STOP = threading.Event()  # somebody has pressed ^C: every trial comes to its end


def until(
    condition: Callable[[], Any], what: str, seconds: float = TIMEOUT_SECONDS, over: Callable[[], Any] = lambda: False
) -> Any:
    """The first true value of `condition`; not waited for any longer when `over`."""
    deadline, ended = time.monotonic() + seconds, False
    while time.monotonic() < deadline and not ended:
        ended = over()
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    raise Unreached(f"never came: {what}")


class Unreached(Exception):
    """The trial did not come to where its fault belongs."""


class Daemon(dockerd.Daemon):
    """One trial at a time has it."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Lock()
        self._layer = dockerd.image_tar()

    @contextlib.contextmanager
    def image(self) -> Iterator[tuple[str, proxy.TcpProxy]]:
        """The name of an image in a registry, and the proxy before that."""
        with registry.serving(self._layer) as (name, _):
            port = int(name.split("/")[0].rpartition(":")[2])
            with proxy.TcpProxy(("127.0.0.1", port)) as road:
                yield f"127.0.0.1:{road.port}/slime:latest", road

    def containers(self, below: Path) -> list[str]:
        words = ["ps", "--all", "--format", '{{.Names}} {{.Label "ci-tasks.dir"}}']
        return [line for line in dockerd.docker(self.host, *words).splitlines() if str(below) in line]
