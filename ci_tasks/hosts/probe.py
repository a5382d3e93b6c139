"""Facts about this machine: each is a question put to a program, and a pure parser of its answer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from ci_tasks.model import HostSpec
from ci_tasks.plan.capacity import HostFacts

PATIENCE = 20.0  # seconds; a hung driver or daemon must not hang the question


def facts(host: HostSpec, *, gpus: bool, container: bool, simulates: bool) -> HostFacts:
    """What `host` (kind local) offers; asks only for what is wanted, since a cold driver takes seconds to answer."""
    found, problem = (host.gpus, "") if host.gpus is not None else (_gpus() if gpus else (0, ""))
    return HostFacts(
        gpus=found,
        gpu_problem=problem,
        container_problem=container_problem(host.runtime) if container else "",
        simulates=simulates,
    )


def parse_gpu_list(text: str) -> int:
    """The number of GPUs in the output of `nvidia-smi --list-gpus` (a line `GPU 0: NVIDIA H200 (UUID: …)` each; a line
    below one for each of its MIG devices)."""
    return sum(line.startswith("GPU ") for line in text.splitlines())


def container_problem(runtime: str) -> str:
    """Why `runtime` cannot start a container here; empty when it can, or when none is wanted."""
    if runtime == "none":
        return ""
    if runtime not in ("docker", "podman"):
        return f"{runtime}, which this version cannot use on a local host"
    if shutil.which(runtime) is None:
        return f"{runtime} (not on PATH)"
    code, said = _ask([runtime, "version", "--format", "{{.Server.Version}}"])
    return "" if code == 0 else f"{runtime} ({_last_line(said)})"


def _gpus() -> tuple[int, str]:
    if shutil.which("nvidia-smi") is None:
        return 0, "no nvidia-smi on PATH"
    code, said = _ask(["nvidia-smi", "--list-gpus"])
    count = parse_gpu_list(said) if code == 0 else 0
    return count, "" if count else _last_line(said)


def _ask(command: Sequence[str]) -> tuple[int, str]:
    try:
        asked = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a child of the program, which keeps the pipe open, can be ended with it
        )
    except OSError as error:
        return 1, str(error)
    with asked:
        try:
            said, _ = asked.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            _end(asked)
            return 1, f"no answer from {command[0]} within {PATIENCE:g} s"
        except BaseException:
            _end(asked)
            raise
    return asked.returncode, said.decode(errors="replace")


def _end(asked: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(asked.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "said nothing"
