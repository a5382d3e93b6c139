"""Core files of a run: where they are and how large. They are never copied; they hold the memory of a whole GPU job."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import time
from typing import Any, Dict, Iterator, List, Optional

from .. import layout
from ..docker.containers import Container
from .copyout import CopyOut, TimeUp

SECONDS = 5.0  # for looking through the workspace, and for one file of a container
_DIFF_SECONDS = 10.0
_MOST = 100
_NAME = re.compile(r"core(\..+)?\Z", re.DOTALL)
_NUMBERED = re.compile(r"core(\..*)?\.\d+\Z|core\Z", re.DOTALL)
_ELF_HEAD = 18
_ET_CORE = 4

Core = Dict[str, Any]


def find_cores(paths: layout.RunDir, plan: Dict[str, Any], found: List[Container]) -> None:
    """Write cores.json where there are any: {path, bytes, container}. Raises OSError."""
    cores = list(_in_workspace(str(plan.get("workspace") or "")))
    for container in found:
        cores += _in_container(container)
    if cores:
        layout.write_json(os.path.join(paths.artifacts, "cores.json"), cores[:_MOST])


def _in_workspace(top: str) -> Iterator[Core]:
    until = time.monotonic() + SECONDS
    for directory, _, names in os.walk(top) if top else ():
        if time.monotonic() > until:
            return
        for name in filter(_NAME.match, names):
            path = os.path.join(directory, name)
            size = _core_size(path)
            if size is not None:
                yield {"path": path, "bytes": size, "container": None}


def _core_size(path: str) -> Optional[int]:
    """Sources are called core.py too, so a file's head decides; where it cannot be read, its name does."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _size_by_name(path)
    try:
        fact = os.fstat(handle)
        is_core = stat.S_ISREG(fact.st_mode) and _is_core(os.read(handle, _ELF_HEAD))
        return fact.st_size if is_core else None
    finally:
        os.close(handle)


def _size_by_name(path: str) -> Optional[int]:
    try:
        fact = os.lstat(path)
    except OSError:
        return None
    is_core = stat.S_ISREG(fact.st_mode) and _NUMBERED.match(os.path.basename(path))
    return fact.st_size if is_core else None


def _is_core(head: bytes) -> bool:
    return head[:4] == b"\x7fELF" and _ET_CORE in head[16:18]


def _in_container(container: Container) -> List[Core]:
    """Those in its working directory; a mounted one is the host's, and was looked through there."""
    directory = container.directory.rstrip("/")
    answer = container.client.ask("diff", container.id, within=_DIFF_SECONDS)
    added = [line[2:] for line in answer.out.splitlines() if line[:2] == "A "]
    wanted = [path for path in added if os.path.dirname(path).rstrip("/") == directory]
    cores: List[Core] = []
    for path in [path for path in wanted if _NAME.match(os.path.basename(path))][:_MOST]:
        try:
            size = _size_inside(container, path)
        except (TimeUp, tarfile.TarError):
            continue
        if size is not None:
            cores.append({"path": path, "bytes": size, "container": container.name})
    return cores


def _size_inside(container: Container, path: str) -> Optional[int]:
    """From the head of its copy; of the rest nothing is read."""
    with CopyOut(container.client, container.id, path, time.monotonic() + SECONDS) as entries:
        for _, entry, archive in entries:
            content = archive.extractfile(entry) if entry.isreg() else None
            return entry.size if content is not None and _is_core(content.read(_ELF_HEAD)) else None
    return None
