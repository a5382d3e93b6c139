"""Reads the tar stream of `docker cp` entry by entry, with a timeout. Its content is not trusted."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, Optional, Tuple, cast

from ..containers.run_containers import DockerClient

_CHUNK = 1 << 18

if TYPE_CHECKING:
    import tarfile

    Entry = Tuple[str, tarfile.TarInfo, tarfile.TarFile]


class CopyTimeout(Exception):
    """`docker cp` was too slow."""


class ContainerArchive:
    """The entries of `path`, each with its path in the container; none where `path` does not exist. Iterating raises
    tarfile.TarError where the copy breaks off, and CopyTimeout."""

    def __init__(self, client: DockerClient, container: str, path: str, deadline: float) -> None:
        self._client, self._container, self._path, self._deadline = client, container, path, deadline
        self._process: "Optional[subprocess.Popen[bytes]]" = None

    def __enter__(self) -> Iterator[Entry]:
        try:
            # The path itself may be a link; those further up are followed anyway. podman has no -L, and needs none.
            follow = ["-L"] if self._client.runtime != "podman" else []
            self._process = self._client.stream("cp", *follow, "%s:%s" % (self._container, self._path), "-")
        except OSError:
            return iter(())
        return self._entries(self._process)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            cast(Any, self._process.stdout).close()
            self._process.wait()

    def _entries(self, process: "subprocess.Popen[bytes]") -> Iterator[Entry]:
        source = _PipeReader(cast(Any, process.stdout).fileno(), self._deadline)
        if source.is_empty():
            return
        import tarfile  # as everywhere in the agent only where there is an archive: it loads many modules

        with tarfile.open(
            fileobj=cast(BinaryIO, source), mode="r|", errors="surrogateescape", bufsize=_CHUNK
        ) as archive:
            while True:
                entry = archive.next()
                if entry is None:
                    return
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every entry of a huge tree
                # The archive begins with the last part of the path that was asked for.
                yield self._path + entry.name[len(entry.name.split("/")[0]) :], entry, archive


class _PipeReader:
    """Reads a pipe until a deadline."""

    def __init__(self, handle: int, deadline: float) -> None:
        self._handle, self._deadline, self._ahead = handle, deadline, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(handle, selectors.EVENT_READ)

    def is_empty(self) -> bool:
        self._ahead = self.read(1)
        return not self._ahead

    def read(self, size: int) -> bytes:
        chunks, self._ahead = [self._ahead], b""
        missing = size - len(chunks[0])
        while missing > 0:
            seconds = self._deadline - time.monotonic()
            if seconds <= 0 or not self._selector.select(seconds):
                raise CopyTimeout("the copy took too long")
            chunk = os.read(self._handle, missing)
            if not chunk:
                break
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)
