"""Core files of a run: where they are and how large. They are never copied; they hold the memory of a whole GPU job."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Iterator, List, Optional

from .. import run_directory
from ..containers.run_containers import RunContainer
from ..records import CoreFile, CoreFiles, Plan
from .docker_cp import container_files

MAX_SECONDS = 5.0  # for looking through the workspace, and for one file of a container
_DIFF_SECONDS = 10.0
_MAX_CORES = 100
_NAME = re.compile(r"core(\..+)?\Z", re.DOTALL)
_NUMBERED = re.compile(r"core(\..*)?\.\d+\Z|core\Z", re.DOTALL)
_ELF_HEAD = 18
_ET_CORE = 4


def find_cores(paths: run_directory.RunDir, plan: Plan, containers: List[RunContainer]) -> None:
    """Write cores.json where there are any: {path, bytes, container}. Raises OSError."""
    cores = list(_in_workspace(plan.workspace))
    for container in containers:
        cores += _in_container(container)
    if cores:
        run_directory.write_record(os.path.join(paths.artifacts, "cores.json"), CoreFiles(tuple(cores[:_MAX_CORES])))


def _in_workspace(top: str) -> Iterator[CoreFile]:
    deadline = time.monotonic() + MAX_SECONDS
    for directory, _, names in os.walk(top) if top else ():
        if time.monotonic() > deadline:
            return
        for name in filter(_NAME.match, names):
            path = os.path.join(directory, name)
            size = _core_size(path)
            if size is not None:
                yield CoreFile(path, size)


def _core_size(path: str) -> Optional[int]:
    """Sources are called core.py too, so a file's head decides; where it cannot be read, its name does."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _size_by_name(path)
    try:
        info = os.fstat(handle)
        is_core = stat.S_ISREG(info.st_mode) and _is_core(os.read(handle, _ELF_HEAD))
        return info.st_size if is_core else None
    finally:
        os.close(handle)


def _size_by_name(path: str) -> Optional[int]:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    is_core = stat.S_ISREG(info.st_mode) and _NUMBERED.match(os.path.basename(path))
    return info.st_size if is_core else None


def _is_core(head: bytes) -> bool:
    return head[:4] == b"\x7fELF" and _ET_CORE in head[16:18]


def _in_container(container: RunContainer) -> List[CoreFile]:
    """Those in its working directory; a mounted one is the host's, and was looked through there."""
    import tarfile

    directory = container.directory.rstrip("/")
    answer = container.client.run("diff", container.id, timeout=_DIFF_SECONDS)
    added = [line[2:] for line in answer.out.splitlines() if line[:2] == "A "]
    candidates = [path for path in added if os.path.dirname(path).rstrip("/") == directory]
    cores: List[CoreFile] = []
    for path in [path for path in candidates if _NAME.match(os.path.basename(path))][:_MAX_CORES]:
        try:
            size = _size_inside(container, path)
        except tarfile.TarError:
            continue
        if size is not None:
            cores.append(CoreFile(path, size, container.name))
    return cores


def _size_inside(container: RunContainer, path: str) -> Optional[int]:
    """From the head of its copy; of the rest nothing is read."""
    deadline = time.monotonic() + MAX_SECONDS
    for _, entry, archive in container_files(container.client, container.id, path, deadline):
        content = archive.extractfile(entry) if entry.isreg() else None
        return entry.size if content is not None and _is_core(content.read(_ELF_HEAD)) else None
    return None
