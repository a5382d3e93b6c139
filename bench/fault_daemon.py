"""The tests' own servers, and of dockerd one that can be killed, started again, and made to hang."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
STOP = threading.Event()  # somebody has pressed ^C: every trial comes to its end


def neighbour(name: str) -> Any:
    """A module of the integration tests."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / f"tests/integration/{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sshd, tcp_proxy, dockerd, registry = (neighbour(name) for name in ("sshd", "tcp_proxy", "dockerd", "registry"))


def until(
    condition: Callable[[], Any], what: str, seconds: float = PATIENCE, over: Callable[[], Any] = lambda: False
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


class Daemon:
    """dockerd of our own, which can be killed and started again, and can be made to hang at a container's creation."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ci-tasks-faults-"))
        self.host = f"unix://{self.directory}/docker.sock"
        self.hold, self.held = self.directory / "hold", self.directory / "held"
        self.busy = threading.Lock()  # one trial at a time
        programs = dockerd._programs(self.directory)
        self._path = f"{programs}:{os.environ['PATH']}"
        runtime = programs / "oci-runtime"
        first, rest = runtime.read_text().split("words = sys.argv[1:]", 1)
        wait = (
            f"import time\nif 'create' in sys.argv and os.path.exists({str(self.hold)!r}):\n"
            f"    open({str(self.held)!r}, 'w').close()\n"
            f"    while os.path.exists({str(self.hold)!r}):\n        time.sleep(0.02)\n"
        )
        runtime.write_text(f"{first}{wait}words = sys.argv[1:]{rest}")
        self._running: subprocess.Popen[bytes] | None = None
        self.start()
        self._layer = dockerd.image_tar()

    @contextlib.contextmanager
    def image(self) -> Iterator[tuple[str, Any]]:
        """The name of an image in a registry, and the road to that."""
        with registry.serving(self._layer) as (name, _):
            port = int(name.split("/")[0].rpartition(":")[2])
            with tcp_proxy.TcpProxy(("127.0.0.1", port)) as road:
                yield f"127.0.0.1:{road.port}/slime:latest", road

    def start(self) -> None:
        with (self.directory / "dockerd.log").open("ab") as log:
            self._running = subprocess.Popen(
                dockerd._dockerd(self.directory, self.host),
                env={**os.environ, "PATH": self._path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        dockerd._await_daemon(self._running, self.host, self.directory / "dockerd.log")

    def kill(self) -> None:
        """dockerd and the containerd that belongs to it. What runs in containers goes on."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()
        for pid in self._containerd():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._containerd(), "containerd is gone")
        for stale in (self.directory / "exec/containerd").glob("containerd.*"):
            if stale.suffix == ".pid" or ".sock" in stale.name:
                stale.unlink()

    def _containerd(self) -> list[int]:
        return self._programs(f"{self.directory}/exec/containerd/containerd.toml")

    def _programs(self, word: str) -> list[int]:
        mark, found = word.encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def containers(self, below: Path) -> list[str]:
        words = ["ps", "--all", "--format", '{{.Names}} {{.Label "ci-tasks.dir"}}']
        return [line for line in dockerd.docker(self.host, *words).splitlines() if str(below) in line]

    def forget(self) -> None:
        """What a trial that went wrong has left must not disturb the next."""
        self.hold.unlink(missing_ok=True)
        self.held.unlink(missing_ok=True)
        if self._running is None or self._running.poll() is not None:
            self.start()
        dockerd._remove_containers(self.host)

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self.forget()
        if self._running is not None:
            dockerd._stop(self._running)
        for pid in self._programs(f"{self.directory}/"):  # the shims of containers whose daemon was killed
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        dockerd._unmount_below(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
