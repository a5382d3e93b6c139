"""A Docker daemon: real dockerd, containerd and runc, in a temporary directory.

It works in a container or a small VM as well: no bridge and no iptables (containers use `--network host` or none), and
an OCI runtime that asks runc only for what this machine may grant, so that CI's exact flags (`--privileged`,
`--ulimit memlock=-1`, `--gpus all`) start here too. With `--gpus`, a fake nvidia-smi appears in the container.
The one image, IMAGE, is made of this machine's own bash and a few coreutils; nothing is downloaded.

Raises Missing without root or dockerd.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.parts import Missing
from tests.parts.engine import output_of
from tests.parts.processes import kill

IMAGE = "ci-tasks-test:local"
PYTHON_IMAGE = "ci-tasks-test-python:local"
TOOLS = (
    *("bash", "sh", "sleep", "cat", "env", "pwd", "ls", "id", "touch", "true", "seq", "df", "rm", "ln", "mkfifo"),
    *("dirname", "mkdir", "chmod", "cp", "date"),  # what a run.sh needs that runs inside a job's container
)
PROGRAMS = ("docker", "dockerd", "containerd", "runc")
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 15

# The daemon calls this in runc's place. Capabilities and limits that this machine cannot give would make runc fail.
OCI_RUNTIME = """\
#!{python} -IS
import json, os, resource, sys, time

words = sys.argv[1:]
if "create" in words and os.path.exists({hold!r}):
    open({held!r}, "w").close()
    while os.path.exists({hold!r}):
        time.sleep(0.02)
after = dict(zip(words, words[1:]))
spec = None
if "create" in words:
    spec = os.path.join(after.get("--bundle") or after.get("-b") or ".", "config.json")
elif "exec" in words:
    spec = after.get("--process") or after.get("-p")
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
may_raise_limits = int(status["CapBnd"], 16) >> 24 & 1
if spec and not may_raise_limits:
    with open(spec) as source:
        whole = json.load(source)
    process = whole.get("process", whole)
    for kept in (process.get("capabilities") or {{}}).values():
        if "CAP_SYS_RESOURCE" in (kept or ()):
            kept.remove("CAP_SYS_RESOURCE")
    for limit in process.get("rlimits") or ():
        most = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if most != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], most)
            limit["soft"] = min(limit["soft"], limit["hard"])
    with open(spec, "w") as out:
        json.dump(whole, out)
os.execv({runc!r}, ["runc", *words])
"""
# Docker offers --gpus where it finds a program of this name on its PATH; runc runs it before the container starts.
GPU_HOOK = """\
#!{python} -IS
import json, os, sys

bundle = json.load(sys.stdin)["bundle"]
with open(os.path.join(bundle, "config.json")) as source:
    spec = json.load(source)
asked = dict(entry.partition("=")[::2] for entry in spec["process"]["env"]).get("NVIDIA_VISIBLE_DEVICES", "")
gpus = [str(n) for n in range(8)] if asked == "all" else [gpu for gpu in asked.split(",") if gpu]
path = os.path.join(bundle, spec["root"]["path"], "usr/bin/nvidia-smi")
with open(path, "w") as out:
    out.write("#!/bin/sh\\n" + "".join(f"echo 'GPU {{gpu}}: simulated'\\n" for gpu in gpus))
os.chmod(path, 0o755)
"""


class Daemon:
    """dockerd with all its state in a directory of its own, until the block ends. It can be killed and started again.
    While the file `hold` exists, it waits when it creates a container; then `held` exists."""

    runtime = "docker"

    def __init__(self) -> None:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if os.geteuid() != 0:
            raise Missing("a Docker daemon of our own needs root")
        if missing:
            raise Missing(f"not installed: {', '.join(missing)} (Debian: apt-get install docker.io)")
        # Short, since a socket's path may have 107 bytes only, and pytest's temporary directories are deep.
        self.directory = Path(tempfile.mkdtemp(prefix="ci-tasks-dockerd-"))
        self.host = f"unix://{self.directory}/docker.sock"
        self.environ = {"DOCKER_HOST": self.host}
        self.hold, self.held = self.directory / "hold", self.directory / "held"
        self._log = self.directory / "dockerd.log"
        self._running: subprocess.Popen[bytes] | None = None
        hook = write_oci_runtime(self.directory, self.hold, self.held).with_name("nvidia-container-runtime-hook")
        hook.write_text(GPU_HOOK.format(python=os.path.realpath(sys.executable)))
        hook.chmod(0o755)

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._running is not None:
            self.resume()
        with contextlib.suppress(Exception):
            self.remove_containers()
        if self._running is not None:
            self._running.terminate()  # dockerd ends its containerd itself
            try:
                self._running.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._running.pid, signal.SIGKILL)
                self._running.wait()
        kill(self._processes("/"))  # the shims of containers whose daemon was killed
        unmount_below(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self, *args: str, stdin: bytes | None = None) -> str:
        return docker(self.host, *args, stdin=stdin)

    def start(self) -> None:
        runtime = self.directory / "bin/oci-runtime"
        argv = [
            *["dockerd", "--host", self.host, "--pidfile", f"{self.directory}/dockerd.pid"],
            *["--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec"],
            *["--bridge=none", "--iptables=false", "--ip-masq=false"],
            # The name nvidia is what `--gpus` looks for.
            *["--add-runtime", f"tests={runtime}", "--add-runtime", f"nvidia={runtime}", "--default-runtime", "tests"],
        ]
        environ = {**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"}
        nothing = subprocess.DEVNULL
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                argv, env=environ, stdin=nothing, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and self._running.poll() is None:
            answer = subprocess.run(["docker", "--host", self.host, "version"], capture_output=True, check=False)
            if answer.returncode == 0:
                return
            time.sleep(0.05)
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
        raise Missing(f"dockerd did not start (exit code {self._running.poll()}):\n{last}")

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It accepts connections and answers nothing. What runs in containers goes on."""
        self.hang()
        try:
            yield
        finally:
            self.resume()

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._running is not None
        self._running.send_signal(number)

    def kill(self) -> None:
        """dockerd and the containerd that belongs to it. What runs in containers goes on."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()
        while containerd := self._processes("/exec/containerd/containerd.toml"):
            kill(containerd)
            time.sleep(0.002)
        for stale in (self.directory / "exec/containerd").glob("containerd.*"):
            if stale.suffix == ".pid" or ".sock" in stale.name:
                stale.unlink()

    def reset(self) -> None:
        """It runs, holds nothing, and has no container."""
        self.hold.unlink(missing_ok=True)
        self.held.unlink(missing_ok=True)
        if self._running is not None:
            self.resume()
        if self._running is None or self._running.poll() is not None:
            self.start()
        self.remove_containers()

    def remove_containers(self) -> None:
        listed = docker(self.host, "ps", "-aq").split()
        if listed:
            docker(self.host, "rm", "-f", *listed)

    def _processes(self, below: str) -> list[int]:
        """Those with a word that begins with this path below the daemon's directory."""
        mark, pids = f"{self.directory}{below}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
        return pids


def unmount_below(directory: Path) -> None:
    """Docker leaves the network namespace of `--network host` mounted. Nothing is removed through a mount."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if place.startswith(f"{directory}/"):
            subprocess.run(["umount", place], check=True)


def docker(host: str, *args: str, stdin: bytes | None = None) -> str:
    """What the real docker says; anything but success is an error that shows its words."""
    return output_of(["docker", "--host", host, *args], stdin)


def write_oci_runtime(directory: Path, hold: Path = Path("/nonexistent"), held: Path = Path("/nonexistent")) -> Path:
    """OCI_RUNTIME as a program in `directory`."""
    program = directory / "bin" / "oci-runtime"
    program.parent.mkdir()
    values = {"python": os.path.realpath(sys.executable), "runc": shutil.which("runc")}
    program.write_text(OCI_RUNTIME.format(**values, hold=str(hold), held=str(held)))
    program.chmod(0o755)
    return program


def image_tar(python: bool = False) -> bytes:
    """A root file system: TOOLS with the shared libraries that ldd names, each at its usual place. With `python`, the
    Python of this process too, as python3 and with a part of its library."""
    tools = {f"/usr/bin/{name}": path for name in TOOLS if (path := shutil.which(name))}
    if python:
        tools.update(_python_files())
    libraries = {library: library for path in set(tools.values()) for library in _libraries(path)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("tmp", "root", "etc", "usr", "usr/bin", "usr/lib", "usr/lib64"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(directory)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for place, path in sorted({**tools, **libraries}.items()):
            in_usr = re.sub(r"^/(bin|lib|lib64)/", r"/usr/\1/", place)
            with open(path, "rb") as source:
                entry = tarfile.TarInfo(in_usr.lstrip("/"))
                entry.size, entry.mode = os.stat(path).st_size, 0o755
                tar.addfile(entry, source)
    return out.getvalue()


def _python_files() -> dict[str, str]:
    program, library = os.path.realpath(sys.executable), Path(os.__file__).parent
    where = [program, "-I", "-c", "import site; print(site.getsitepackages()[0])"]  # it has to be there
    packages = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    files = {"/usr/bin/python3": program, f"{packages}/README.txt": f"{library}/os.py"}
    for part in (
        "*.py",
        "encodings/*.py",
        "collections/*.py",
        "concurrent/**/*.py",
        "logging/*.py",
        "importlib/*.py",
        "json/*.py",
        "re/*.py",
        "lib-dynload/*",
    ):
        files.update({str(path): str(path) for path in library.glob(part)})
    return files


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", listed)
