"""`clean`: what runs have left on a host, because somebody went away, something was killed, or it was asked to stay.

A run that goes on is never touched, nor is what is not home yet or was kept for `shell`, unless `everything` says so.
Somebody else's runs go when they have long been over.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import EXIT_BLOCKED
from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runner.leave.remove import remove_left
from ci_tasks.runner.link import listing
from ci_tasks.runs import store
from ci_tasks.runs.record import load

_DAY = 24 * 3600.0


def clean(config: Config, host: str, *, days: float | None, everything: bool) -> int:
    """Print what is removed and what stays, with the reason. Returns 125 where something could not be removed."""
    spec = config.host(host)
    if spec.kind == "local":
        return _report(_clean_here(days, everything))
    from ci_tasks.flows.boxes import open_box
    from ci_tasks.flows.there import OLD_DAYS

    days = OLD_DAYS if days is None else days
    box = open_box(spec)
    try:
        runs = box.line.request("runs")
        code = _report(_clean_there(box.line.request, runs, days, everything))
        pruned = box.line.request("prune", days=days)
        print("old objects: forgotten" if pruned else "old objects: not now, another run uses them")
        return code
    finally:
        box.close()


def _report(lines: Iterator[tuple[str, list[str]]]) -> int:
    """`lines`: a sentence each, and what is left although it should be gone."""
    bad, any_line = False, False
    for sentence, left in lines:
        any_line = True
        print("\n".join([sentence, *(f"  left: {line}" for line in left)]), flush=True)
        bad = bad or bool(left)
    if not any_line:
        print("no run has left anything")
    return EXIT_BLOCKED if bad else 0


def _clean_there(
    request: Any, runs: list[dict[str, Any]], days: float, everything: bool
) -> Iterator[tuple[str, list[str]]]:
    for run in runs:
        if why := _stays_there(run, days, everything):
            yield f"{run['id']}: stays, {why}", []
        else:
            yield f"{run['id']}: removed", request("clear", dir=run["dir"])["left"]


def _stays_there(run: dict[str, Any], days: float, everything: bool) -> str:
    """Why a run on another host is not to be removed; empty where it is."""
    if run["alive"]:
        return "it runs"
    mine = os.path.basename(os.path.dirname(run["dir"])).endswith(f"-{store.client_id()}")
    if not mine:
        long_ago = run["ended_at"] is not None and time.time() - run["ended_at"] > days * _DAY
        return "" if long_ago else f"it is somebody else's and not over for {days:g} days"
    if run["kept"] and not everything:
        return "it was kept for `shell`; --all removes it"
    if run["row"] and not _is_home(run["dir"]) and not everything:
        return "it is not home yet: `fetch` it first, or --all"
    return ""


def _is_home(directory: str) -> bool:
    batch, number = os.path.split(directory)
    here = store.home() / "runs" / os.path.basename(batch).removesuffix(f"-{store.client_id()}") / number
    return not here.exists() or bool(read_json(RunDir(str(here)).remote).get("complete"))


def _clean_here(days: float | None, everything: bool) -> Iterator[tuple[str, list[str]]]:
    for told in listing.runs(str(store.home())):
        run = RunDir(told["dir"])
        if told["alive"]:
            yield f"{told['id']}: stays, it runs", []
        elif days is not None and told["ended_at"] and time.time() - told["ended_at"] > days * _DAY:
            left = remove_left(run.path)
            shutil.rmtree(run.path, ignore_errors=True)
            _forget_empty(Path(run.path).parent)
            yield f"{told['id']}: removed", left
        elif told["kept"] and not everything:
            yield f"{told['id']}: stays, it was kept for `shell`; --all removes what was kept", []
        elif told["state"] != "planned" and not read_json(run.remote) and _has_left(run):
            load(run)  # so that a run whose runner was killed has its record
            yield f"{told['id']}: what it left is removed", remove_left(run.path)


def _has_left(run: RunDir) -> bool:
    status, plan = read_json(run.status), read_json(run.plan)
    owned = any(os.path.lexists(path) for path in plan.get("owned") or [])
    return owned or status.get("state") != "ended" or bool(status.get("left"))


def _forget_empty(batch: Path) -> None:
    shutil.rmtree(batch / "source", ignore_errors=True)
    try:
        batch.rmdir()
    except OSError:
        pass
