"""Reads the tar stream of `docker cp` entry by entry, with a timeout. Its content is not trusted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Iterator, Tuple, cast

from ..containers.run_containers import DockerClient

_CHUNK = 1 << 18

if TYPE_CHECKING:
    import tarfile

    Entry = Tuple[str, tarfile.TarInfo, tarfile.TarFile]


def container_files(client: DockerClient, container: str, path: str, deadline: float) -> "Iterator[Entry]":
    """The entries of `path`, each with its path in the container; none where `path` does not exist. This, and reading
    an entry, raises tarfile.TarError where the copy breaks off, or is not over at `deadline`."""
    # The path itself may be a link; those further up are followed anyway. podman has no -L, and needs none.
    follow = ["-L"] if client.runtime != "podman" else []
    try:
        process = client.stream("cp", *follow, "%s:%s" % (container, path), "-")
    except OSError:
        return
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    timer.daemon = True
    timer.start()
    out = cast(Any, process.stdout)
    try:
        is_empty = not out.peek(1)
        import tarfile  # as everywhere in the agent only where there is an archive: it loads many modules

        if not is_empty:
            with tarfile.open(fileobj=out, mode="r|", errors="surrogateescape", bufsize=_CHUNK) as archive:
                for entry in iter(archive.next, None):
                    archive.members = []  # type: ignore[attr-defined]  # else it keeps every entry of a huge tree
                    # The archive begins with the last part of the path that was asked for.
                    yield path + entry.name[len(entry.name.split("/")[0]) :], entry, archive
        if time.monotonic() >= deadline:
            raise tarfile.ReadError("it took too long")
    finally:
        timer.cancel()
        process.kill()
        out.close()
        process.wait()
