"""How the GPUs of this host stand for one request: which are fit to be used, and what is with the others, in words."""

from __future__ import annotations

import os
from typing import Container, Dict, List

from . import holders, locks
from .gpus import Sight, busy
from .request import Request


def absent(request: Request, sight: Sight) -> List[int]:
    """The GPUs that the lock script believes in and this host does not have."""
    there = set(sight.ids)
    return [gpu for gpu in range(request.total) if gpu not in there]


def fit(request: Request, sight: Sight) -> List[int]:
    """The GPUs that are there and that nobody uses."""
    used = busy(sight.gpus, sight.apps)
    return [gpu for gpu in sight.ids if gpu < request.total and gpu not in used]


def problem(request: Request, sight: Sight) -> str:
    """Why the request can never be met here; empty where it can."""
    if sight.problem:
        return "the GPUs of this host cannot be seen: %s" % sight.problem
    usable = [gpu for gpu in sight.ids if gpu < request.total]
    if len(usable) < request.count:
        return "this host has %d GPU%s, the job needs %d" % (len(usable), "s"[: len(usable) != 1], request.count)
    return ""


def sentences(request: Request, sight: Sight, own: Container[int]) -> List[str]:
    """What keeps a request from being met now; `own` are the GPUs whose locks this process has."""
    missing = absent(request, sight)
    said = ["%s %s not exist here" % (holders.ids(missing), "do" if len(missing) > 1 else "does")] if missing else []
    used = busy(sight.gpus, sight.apps)
    paths = {gpu: path for gpu, path in request.paths().items() if gpu not in missing}
    held = _described(paths)
    found: Dict[int, str] = {}
    for gpu, path in paths.items():
        if gpu in held:
            found[gpu] = " held by " + held[gpu]
        elif gpu in used:
            found[gpu] = ": %s without a lock" % used[gpu]
        elif gpu not in own and os.path.exists(path) and not locks.is_free(path):
            found[gpu] = " held by " + holders.SOMEBODY
    return holders.grouped(found) + said


def collector(request: Request) -> str:
    """Who else has the turn, as a sentence; empty where nobody is known to."""
    held = _described({0: request.turn})
    return "%s is collecting GPUs first" % held[0] if held else ""


def _described(paths: Dict[int, str]) -> Dict[int, str]:
    """Those that another process has for itself, with who that is."""
    known: Dict[int, str] = {}
    found: Dict[int, str] = {}
    for key, held in locks.holders(paths).items():
        pid = next((lock.pid for lock in held if not lock.shared and lock.pid != os.getpid()), None)
        if pid is not None:
            found[key] = known.setdefault(pid, "") or holders.describe(pid)
            known[pid] = found[key]
    return found
