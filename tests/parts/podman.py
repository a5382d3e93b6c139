"""podman with storage of its own, in a temporary directory: real podman, conmon and runc.

It works as root in a container or a chroot as well: storage without overlays, cgroups without systemd, and the OCI
runtime of `dockerd`, which asks runc only for what this machine may grant.

Raises Missing without root or podman.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.parts import Missing
from tests.parts.dockerd import unmount_below, write_oci_runtime
from tests.parts.engine import output_of

PROGRAMS = ("podman", "conmon", "runc")
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "tests"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{directory}/tmp"
[engine.runtimes]
tests = ["{runtime}"]
"""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{directory}/storage"
runroot = "{directory}/run"
"""


# A registry of the tests has no TLS, and a name without registry is resolved by nobody, as podman has it at first.
REGISTRIES_CONF = """\
unqualified-search-registries = []
[[registry]]
location = "127.0.0.1"
insecure = true
"""


class Podman:
    """All its state is in a directory of its own, until the block ends."""

    runtime = "podman"

    def __init__(self) -> None:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if os.geteuid() != 0:
            raise Missing("podman with storage of its own needs root")
        if missing:
            raise Missing(f"not installed: {', '.join(missing)} (Debian: apt-get install podman)")
        self.directory = Path(tempfile.mkdtemp(prefix="ci-tasks-podman-"))
        runtime = write_oci_runtime(self.directory)
        texts = {"containers.conf": CONTAINERS_CONF, "storage.conf": STORAGE_CONF, "registries.conf": REGISTRIES_CONF}
        for name, text in texts.items():
            (self.directory / name).write_text(text.format(runtime=runtime, directory=self.directory))
        self.environ = {
            "CONTAINERS_CONF": f"{self.directory}/containers.conf",
            "CONTAINERS_REGISTRIES_CONF": f"{self.directory}/registries.conf",
            "CONTAINERS_STORAGE_CONF": f"{self.directory}/storage.conf",
            "LC_ALL": "C.UTF-8",  # else conmon takes no path that is not ASCII
        }

    def __enter__(self) -> Podman:
        try:
            self.call("info")
        except AssertionError as problem:
            self.stop()
            raise Missing(f"podman does not run here: {problem}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, *args: str, stdin: bytes | None = None) -> str:
        return output_of(["podman", *args], stdin, {**os.environ, **self.environ})

    def stop(self) -> None:
        argv, environ = ["podman", "rm", "--all", "--force", "--time", "0"], {**os.environ, **self.environ}
        subprocess.run(argv, capture_output=True, check=False, env=environ)
        unmount_below(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
