"""A Docker daemon of the test session's own: real dockerd, containerd and runc, in a temporary directory.

It works in a container or a small VM as well: no bridge and no iptables (containers use `--network host` or none), and
an OCI runtime that asks runc only for what this machine may grant, so that CI's exact flags (`--privileged`,
`--ulimit memlock=-1`, `--gpus all`) start here too. With `--gpus`, a pretend nvidia-smi appears in the container.
The one image, IMAGE, is made of this machine's own bash and a few coreutils; nothing is downloaded.

`docker_host` is the fixture. Without root or dockerd it skips with the reason; where CI=true it fails instead.
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

import pytest

IMAGE = "ci-tasks-test:local"
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
import json, os, resource, sys

words = sys.argv[1:]
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
    out.write("#!/bin/sh\\n" + "".join(f"echo 'GPU {{gpu}}: pretend'\\n" for gpu in gpus))
os.chmod(path, 0o755)
"""


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The value of DOCKER_HOST for a running daemon that has IMAGE."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        cannot("a Docker daemon of our own needs root")
    if missing:
        cannot(f"not installed: {', '.join(missing)} (Debian: apt-get install docker.io)")
    # Short, since a socket's path may have 107 bytes only, and pytest's temporary directories are deep.
    directory = Path(tempfile.mkdtemp(prefix="ci-tasks-dockerd-"))
    try:
        with daemon(directory) as host:
            yield host
    finally:
        _unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _unmount_below(directory: Path) -> None:
    """Docker leaves the network namespace of `--network host` mounted. Nothing is removed through a mount."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if place.startswith(f"{directory}/"):
            subprocess.run(["umount", place], check=True)


def cannot(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def daemon(directory: Path) -> Iterator[str]:
    """dockerd with all its state in `directory`, until the block ends."""
    host = f"unix://{directory}/docker.sock"
    log = directory / "dockerd.log"
    environ = {**os.environ, "PATH": f"{_programs(directory)}:{os.environ['PATH']}"}
    with log.open("wb") as out:
        running = subprocess.Popen(
            _dockerd(directory, host),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _await_daemon(running, host, log)
        docker(host, "import", "-", IMAGE, stdin=image_tar())
        yield host
    finally:
        _remove_containers(host)
        _stop(running)


def _programs(directory: Path) -> Path:
    programs = directory / "bin"
    programs.mkdir()
    words = {"python": os.path.realpath(sys.executable), "runc": shutil.which("runc")}
    for name, text in (("oci-runtime", OCI_RUNTIME), ("nvidia-container-runtime-hook", GPU_HOOK)):
        (programs / name).write_text(text.format(**words))
        (programs / name).chmod(0o755)
    return programs


def _dockerd(directory: Path, host: str) -> list[str]:
    runtime = directory / "bin" / "oci-runtime"
    return [
        *["dockerd", "--host", host, "--pidfile", f"{directory}/dockerd.pid"],
        *["--data-root", f"{directory}/data", "--exec-root", f"{directory}/exec"],
        *["--bridge=none", "--iptables=false", "--ip-masq=false"],
        # The name nvidia is what `--gpus` looks for.
        *["--add-runtime", f"tests={runtime}", "--add-runtime", f"nvidia={runtime}", "--default-runtime", "tests"],
    ]


def _await_daemon(running: subprocess.Popen[bytes], host: str, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and running.poll() is None:
        if subprocess.run(["docker", "--host", host, "version"], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    cannot(f"dockerd did not start (exit code {running.poll()}):\n{last}")


def _remove_containers(host: str) -> None:
    listed = subprocess.run(["docker", "--host", host, "ps", "-aq"], capture_output=True, text=True, check=False)
    if listed.stdout.split():
        subprocess.run(["docker", "--host", host, "rm", "-f", *listed.stdout.split()], capture_output=True, check=False)


def _stop(running: subprocess.Popen[bytes]) -> None:
    running.terminate()  # dockerd ends its containerd itself
    try:
        running.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def docker(host: str, *words: str, stdin: bytes | None = None) -> str:
    """What the real docker says; anything but success is an error that shows its words."""
    done = subprocess.run(["docker", "--host", host, *words], input=stdin, capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(
            f"docker {' '.join(words)}: exit {done.returncode}: {done.stderr.decode(errors='replace')}"
        )
    return done.stdout.decode()


def image_tar() -> bytes:
    """A root file system: TOOLS with the shared libraries that ldd names, each at its usual place."""
    tools = {f"/usr/bin/{name}": path for name in TOOLS if (path := shutil.which(name))}
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


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", listed)
