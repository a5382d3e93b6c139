"""The host's side of prefetching: this machine, or one that is spoken to. Both do the same with the same words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ci_tasks.errors import Blocked, UsageError
from ci_tasks.hub.found import STOPPED
from ci_tasks.model import HostSpec
from ci_tasks.runner.hub.refused import DENIED, HubRefused

Tell = Callable[[dict[str, Any]], None]
LOOK, FETCH = "hub-look", "hub-fetch"  # requests of ci_tasks.runner.link.service


class Host(Protocol):
    """Where repositories will lie. What is given and what comes back: see ci_tasks.runner.hub.fetch."""

    def look(self, repositories: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> Mapping[str, Any]: ...

    def fetch(
        self, repository: Mapping[str, Any], token: str | None, proxies: Mapping[str, str], tell: Tell
    ) -> Mapping[str, Any]: ...


class Here:
    """This machine, in this process."""

    def look(self, repositories: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> Mapping[str, Any]:
        from ci_tasks.runner.hub import fetch

        found: list[dict[str, Any]] = []
        for one in repositories:
            try:
                found.append(fetch.look(dict(one)))
            except HubRefused as refused:
                found.append({"code": refused.code, "message": refused.message})
            except OSError as error:
                found.append({"code": DENIED, "message": str(error)})
        return {"repositories": found, "paths": {path: fetch.present(path) for path in paths}}

    def fetch(
        self, repository: Mapping[str, Any], token: str | None, proxies: Mapping[str, str], tell: Tell
    ) -> Mapping[str, Any]:
        from ci_tasks.runner.hub import fetch
        from ci_tasks.runner.hub.transfer import Stopped

        stop = threading.Event()
        try:
            return fetch.fetch(dict(repository), token, tell, proxies, stop)
        except HubRefused as refused:
            return {"code": refused.code, "message": refused.message}
        except Stopped:
            return {"code": STOPPED, "message": "stopped"}


class There:
    """A host over SSH, or the login node of a cluster: compute nodes see what is brought there if they share it."""

    def __init__(self, spec: HostSpec) -> None:
        from ci_tasks.flows.boxes import open_box

        self._box = open_box(spec)
        self._line = self._box.line

    def look(self, repositories: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._request(LOOK, repositories=list(repositories), paths=list(paths))
        return answer

    def fetch(
        self, repository: Mapping[str, Any], token: str | None, proxies: Mapping[str, str], tell: Tell
    ) -> Mapping[str, Any]:
        """Over a link that is made again, the host goes on where it stopped. The token goes by standard input."""
        held = bytearray()

        def take_part(chunk: bytes) -> None:
            held.extend(chunk)
            *whole, rest = bytes(held).split(b"\n")
            held[:] = rest
            for line in whole:
                tell(json.loads(line))

        answer: Mapping[str, Any] = self._request(
            FETCH, take_part=take_part, repository=dict(repository), token=token, proxies=dict(proxies)
        )
        return answer

    def close(self) -> None:
        self._line.save()
        self._box.close()

    def _request(self, do: str, **fields: Any) -> Any:
        from ci_tasks.hosts.channel import HostRefused

        try:
            return self._line.request(do, **fields)
        except HostRefused as refused:
            raise Blocked(f"{self._line.spec.name}: {refused.message}") from None


@contextmanager
def open_host(spec: HostSpec) -> Iterator[Host]:
    """Raises UsageError for a kind of host that there is none of."""
    if spec.kind == "local":
        yield Here()
        return
    if spec.kind not in ("ssh", "slurm"):
        raise UsageError(f"host {spec.name} is of kind {spec.kind}, which there is none of")
    there = There(spec)
    try:
        yield there
    finally:
        there.close()
