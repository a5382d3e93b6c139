"""`attach`, `fetch`, `cancel` and `logs --follow`: coming back to runs, wherever they are.

A run of this machine is looked at where it lies. One of another host is brought home first: its mirror grows on from
where it stopped. Several people may watch one run, and several processes here: one of them writes the mirror.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UnknownName, UsageError
from ci_tasks.flows.running import conclude
from ci_tasks.flows.site import Look
from ci_tasks.flows.view import copy_from, open_view, running_lane
from ci_tasks.hosts import box, local
from ci_tasks.hosts.box import Box, Errand
from ci_tasks.hosts.mirror import hold
from ci_tasks.model import LOST, HostSpec
from ci_tasks.report.live import WAITING, Lane
from ci_tasks.runner.layout import RunDir, read_json, write_json
from ci_tasks.runs import store
from ci_tasks.runs.record import is_over, load, not_begun

_GLANCE = 0.05


@dataclass
class Attended:
    """A run that somebody came back to. `errand` is ours to bring home; without one the run is here, or another process
    brings it: `take` makes it ours as soon as that process has gone."""

    id: str
    run: RunDir
    errand: Errand | None = None
    began: float = field(default_factory=time.monotonic)
    take: Callable[[Attended], None] = lambda one: None

    def look(self) -> Look:
        from ci_tasks.flows.boxes import look

        if self.errand is None:
            self.take(self)
        if self.errand is not None:
            return look(self.errand)
        return Look(over=is_over(self.run))


def attach(name: str, config: Config, host: str | None) -> int:
    """Follow runs to their end and bring them home. Returns the exit code of design's statuses."""
    runs = find(name, config, host)
    with attended(runs) as (there, boxes):
        _follow(name, there, boxes)
        records = [_record(one) for one in there]
    batches = dict.fromkeys(store.batch_of(one.id) for one in there)
    return conclude(records, [one.run.log for one in there], ", ".join(batches))


def fetch(name: str, config: Config, host: str | None) -> int:
    """Bring home what there is of runs: everything of those that have ended, the log so far of the others."""
    with attended(find(name, config, host)) as (there, boxes):
        for one in there:
            while not (one.look().over or one.look().never or _is_caught_up(one)):
                _say_all(boxes)
                time.sleep(_GLANCE)
        goes_on = [one for one in there if not (one.look().over or one.look().never)]
        for one in there:
            state = "still running, its log so far" if one in goes_on else _record(one)["status"]
            print(f"{one.id}: {state}: {one.run.path}")
    return 0


def cancel(name: str, config: Config, host: str | None) -> list[str]:
    """End runs with everything they started. Returns the ids of those that were running."""
    found = [(id, run) for id, run in find(name, config, host) if _may_run(run)]
    with attended(found) as (there, boxes):
        for one in there:
            if one.errand is not None:
                boxes[_host_of(one.run)].end(one.errand, "cancel")
            elif not os.path.exists(one.run.remote):
                local.cancel(one.run)
            else:  # another command here brings it home
                _ask_to_cancel(one.run)
        for one in there:
            while not (one.look().over or one.look().never):
                _say_all(boxes)
                time.sleep(_GLANCE)
            if _record(one)["status"] == LOST:
                raise Blocked(f"{one.id}: {_record(one)['reason']}")
    return [one.id for one in there]


def show_log(name: str, *, follow: bool) -> int:
    """Copy a run's log to standard output, byte for byte; with `follow` until the run has ended."""
    run = _only(name, store.find(name))
    offset = copy_from(run.log, 0)
    if not follow:
        return 0
    with attended([(name, run)]) as ((one,), _):
        while not (one.look().over or one.look().never):
            time.sleep(_GLANCE)
            offset = copy_from(run.log, offset)
        copy_from(run.log, offset)
        _record(one)  # who brings a run home also says how it ended
    return 0


def find(name: str, config: Config, host: str | None) -> list[tuple[str, RunDir]]:
    """The runs that `name` means: those kept here; with `host` those on it, which are then known here too."""
    if not host:
        return store.find(name)
    spec = config.host(host)
    found = list(_adopted(name, spec))
    if not found:
        raise UnknownName("run", name, [run["id"] for run in _runs_on(spec) if run["id"]], where=f"host {host}")
    return found


@contextmanager
def attended(
    runs: Sequence[tuple[str, RunDir]],
) -> Iterator[tuple[list[Attended], dict[str, Box]]]:
    """The runs, each growing here while the block lasts. Runs of other hosts that nobody brings home yet are ours."""
    from ci_tasks.flows.boxes import open_box

    boxes: dict[str, Box] = {}

    def take(one: Attended) -> None:
        held = None if _is_complete(one.run) else hold(one.run)
        if held is None:
            return
        if _is_complete(one.run):  # by now
            held.release()
            return
        remote, host = read_json(one.run.remote), _host_of(one.run)
        if host not in boxes:
            boxes[host] = open_box(_spec(remote))
        one.errand = Errand(run=one.run, directory=remote["directory"], held=held, stays=bool(remote.get("adopted")))
        boxes[host].attach(one.errand)

    there = [Attended(id, run, take=take) for id, run in runs]
    try:
        for one in there:
            take(one)
        yield there, boxes
    finally:
        for one_box in boxes.values():
            one_box.leave()
            one_box.close()


def _is_complete(run: RunDir) -> bool:
    """Whether nothing of the run is to be brought from anywhere."""
    remote = read_json(run.remote)
    return not remote or bool(remote.get("complete"))


def _follow(name: str, there: Sequence[Attended], boxes: dict[str, Box]) -> None:
    view = open_view(name, [one.run for one in there])
    try:
        while True:
            for one_box in boxes.values():
                while not one_box.line.said.empty():
                    view.say(one_box.line.said.get())
            looks = [one.look() for one in there]
            view.show([_lane(one, look) for one, look in zip(there, looks, strict=True)])
            if all(look.over or look.never for look in looks):
                return
            time.sleep(_GLANCE)
    except KeyboardInterrupt:
        view.say(f"the runs go on; `ci-tasks attach {name}` comes back to them, `ci-tasks cancel {name}` ends them")
        raise
    finally:
        view.close()


def _lane(one: Attended, look: Look) -> Lane:
    row = str(read_json(one.run.plan).get("row"))
    if look.over or look.never:
        record = load(one.run)
        return Lane(row, look.never[0] if look.never else record["status"], record["timings"]["seconds"])
    status = read_json(one.run.status)
    if not status:
        return Lane(row, WAITING, None, look.note)
    return running_lane(row, one.run, time.time() - status["started_at"], look.note)


def _record(one: Attended) -> dict[str, Any]:
    look = one.look()
    return not_begun(one.run, *look.never) if look.never else load(one.run)


def _is_caught_up(one: Attended) -> bool:
    """Whether the run goes on and its log here is what the host had a moment ago."""
    mirror = one.errand.mirror if one.errand else None
    return (
        mirror is not None
        and mirror.heard
        and not mirror.over.is_set()
        and mirror.offset >= mirror.status.get("log_bytes", 0)
    )


def _say_all(boxes: dict[str, Box]) -> None:
    for one in boxes.values():
        while not one.line.said.empty():
            print(one.line.said.get(), flush=True)


def _ask_to_cancel(run: RunDir) -> None:
    from ci_tasks.flows.boxes import open_box

    remote = read_json(run.remote)
    one_box = open_box(_spec(remote))
    try:
        one_box.line.request("cancel", dir=remote["directory"])
    finally:
        one_box.close()


def _may_run(run: RunDir) -> bool:
    """Of a run that somebody else began nothing is known here yet."""
    return bool(read_json(run.status) or read_json(run.remote).get("adopted")) and not is_over(run)


def _host_of(run: RunDir) -> str:
    return str(read_json(run.remote).get("host"))


def _spec(remote: dict[str, Any]) -> HostSpec:
    """The host where the run is, as it was called then: hosts.yaml may say something else by now."""
    kind = remote.get("kind", "ssh")
    return HostSpec(name=remote["host"], kind=kind, address=remote["address"], workspace=remote["workspace"])


def _only(name: str, found: list[tuple[str, RunDir]]) -> RunDir:
    if len(found) > 1:
        raise UsageError(f"{name!r} means {len(found)} runs", hint="one of: " + ", ".join(id for id, _ in found))
    return found[0][1]


def _runs_on(spec: HostSpec) -> list[dict[str, Any]]:
    from ci_tasks.flows.boxes import open_box

    if spec.kind == "local":
        raise UsageError(f"host {spec.name} is this machine", hint="its runs are known without --host")
    here = open_box(spec)
    try:
        found: list[dict[str, Any]] = here.line.request("runs")
        return found
    finally:
        here.close()


def _adopted(name: str, spec: HostSpec) -> Iterator[tuple[str, RunDir]]:
    """Runs of the host by that name, somebody else's perhaps, each with a directory here from now on."""
    from ci_tasks.flows.boxes import open_box

    one_box = open_box(spec)
    try:
        for found in one_box.line.request("runs"):
            id = str(found["id"] or "")
            if not found["row"] or not (id == name or id.startswith(f"{name}.") or store.batch_of(id) == name):
                continue
            batch, number = os.path.split(found["dir"])
            run = RunDir(str(store.home() / "runs" / os.path.basename(batch) / number))
            if not os.path.exists(run.plan):
                said = one_box.line.request("plan", dir=found["dir"])
                Path(run.path).mkdir(parents=True, exist_ok=True)
                write_json(run.plan, said["plan"])
                Path(run.script).write_text(said["script"], encoding="utf-8", errors="surrogateescape", newline="\n")
                box.remember(run, spec, found["dir"], adopted=True)
            yield id, run
    finally:
        one_box.close()
