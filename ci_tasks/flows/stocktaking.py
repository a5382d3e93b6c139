"""What the hub and the host say of a repository → a line of the report. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ci_tasks.flows.wanting import Item
from ci_tasks.hub.asking import Hub
from ci_tasks.hub.found import PASSING, Found, Refusal
from ci_tasks.report.prefetch import LOST, MISSING, PARTLY, THERE, Line, Mount
from ci_tasks.runner.hub.refused import FULL
from ci_tasks.runner.hub.sizes import SPARE, human
from ci_tasks.suites.prefetch.wants import Repository


def request_of(item: Item, answer: Found | Refusal, hub: Hub) -> dict[str, Any] | None:
    """What the host is told of a repository; None where there is nowhere to put it, or nothing that ever was there.

    Where the hub could not be asked, the host knows what was there when it last could."""
    if item.place.path is None or (isinstance(answer, Refusal) and answer.code not in PASSING):
        return None
    one = item.repository
    return {
        "kind": one.kind,
        "id": one.id,
        "revision": one.revision,
        "part": _part(one),
        "commit": "" if isinstance(answer, Refusal) else answer.commit,
        "directory": item.place.path,
        "layout": one.layout,
        "endpoint": hub.endpoint,
        "files": None if isinstance(answer, Refusal) else [[f.path, f.size, f.etag] for f in answer.files],
    }


def _part(one: Repository) -> str:
    """Unlike for two that lie in one directory, or two parts of one."""
    said = repr((one.kind, one.id, one.revision, one.include, one.exclude))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def line_of(item: Item, answer: Found | Refusal, state: Mapping[str, Any] | None, hub: Hub) -> Line:
    one = item.repository
    line = Line(
        kind=one.kind,
        id=one.id,
        revision=one.revision,
        commit=None,
        path=one.directory,
        directory=item.place.path,
        state=MISSING if item.place.path else LOST,
        size=None,
        missing=None,
        gated="",
        private=False,
        mount=None,
        rows=item.rows,
        where=item.where,
        message=item.place.why,
    )
    if isinstance(answer, Refusal):
        return _unasked(line, answer, state)
    line = replace(
        line, commit=answer.commit, size=answer.size, gated=answer.gated, private=answer.private, missing=answer.size
    )
    if state is not None and "code" in state:
        return refused_line(line, state, hub, item)
    if state is not None:
        line = replace(line, state=_word(state), missing=state["missing"], mount=state["mount"])
    return line if answer.closed is None or line.state == THERE else _closed(line, answer.closed)


def _closed(line: Line, refusal: Refusal) -> Line:
    return replace(line, problem=refusal.code, message=refusal.message, hint=refusal.hint)


def _unasked(line: Line, refusal: Refusal, state: Mapping[str, Any] | None) -> Line:
    """Nobody knows what the hub has now; a test's own download takes what is there."""
    if not state or "code" in state or _word(state) != THERE:
        return _closed(line, refusal)
    commit, message = str(state["commit"]), f"{refusal.message}; all that was there when it last could be is there"
    return replace(line, state=THERE, commit=commit, size=int(state["size"]), missing=0, message=message)


def _word(state: Mapping[str, Any]) -> str:
    files, sizes = state["files"], state["bytes"]
    if files["there"] == sum(files.values()):
        return THERE
    return PARTLY if files["there"] or files["unsure"] or sizes["part"] else MISSING


def mounts_of(lines: Sequence[Line], states: Iterable[Mapping[str, Any]]) -> list[Mount]:
    free = {state["mount"]: int(state["free"]) for state in states if "mount" in state}
    return [
        Mount(mount, room, sum(line.missing or 0 for line in lines if line.mount == mount and not line.problem), SPARE)
        for mount, room in sorted(free.items())
    ]


def fitting(line: Line, full: Sequence[Mount], hub: Hub, item: Item) -> Line:
    """Nothing is begun that has no room to end."""
    mount = next((one for one in full if one.mount == line.mount), None)
    if mount is None or not line.missing or line.problem:
        return line
    message = f"{mount.mount} has {human(mount.free)} free, and {human(mount.needed)} are to come to it"
    return refused_line(line, {"code": FULL, "message": message}, hub, item)


def refused_line(line: Line, said: Mapping[str, Any], hub: Hub, item: Item) -> Line:
    refusal = hub.refusal(str(said["code"]), str(said["message"]), item.repository)
    return replace(line, problem=refusal.code, message=refusal.message, hint=refusal.hint)
