"""What a client may ask of a host, each request by its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List

from .. import layout, setting
from ..code.objects import SHA1, SHA256, Busy, form_of, locked
from ..code.store import MissingBase, Store, StoreError
from ..leave import ending, remove
from ..slurm import job as slurm_job
from ..slurm.desk import Desk
from . import ask, bundle, frames, listing
from .tail import Tail

Request = Dict[str, Any]
_LOCKS = 16  # files for all the runs that there will ever be
_PATIENCE = 300.0  # seconds; a large tree on a slow disk takes a while


class Refused(Exception):
    """A request that cannot be done; `code` is for the client's code, the message for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """One client's connection: where things are, and how to speak with it."""

    home: str
    runner: str
    code: str
    tail: Tail
    send: Callable[[bytes], None]
    chunks: Callable[[], Iterator[bytes]]
    is_gone: Callable[[], bool]
    slurm: Desk = field(default_factory=Desk)

    def store(self, form: str = SHA1) -> Store:
        """Objects of one repository have names of one form."""
        return Store(os.path.join(self.home, "store.git" if form == SHA1 else "store-%s.git" % form), form)

    def run_dir(self, request: Request) -> str:
        """The run directory that a request names. Another home's is refused: the client remembers an old one."""
        path = str(request["dir"])
        runs = os.path.join(self.home, "runs") + os.sep
        if not path.startswith(runs) or os.path.normpath(path) != path:
            raise Refused("elsewhere", "%s is not below %s" % (path, runs))
        return path


@dataclass
class Known:
    """How a request is performed; `aside` in a thread, so that it keeps no other waiting. `ends`: it ends or removes
    something, and comes to its end whatever becomes of the client."""

    perform: Callable[[Session, Request], Any]
    aside: bool = False
    ends: bool = False


def receive(session: Session, request: Request) -> Any:
    """Take over one pack of objects."""
    chunks = session.chunks()
    try:
        session.store(str(request.get("form", SHA1))).receive(chunks)
    except MissingBase as problem:
        raise Refused("missing-base", str(problem)) from None
    except StoreError as problem:
        raise Refused("store", str(problem)) from None
    finally:
        for _ in chunks:  # what was not read of the pack must not be taken for requests
            pass
    return None


def create(session: Session, request: Request) -> Any:
    """Make a run directory, and its checkout where `parts` name one."""
    path = session.run_dir(request)
    with session.slurm.waits(), _alone(session, path):
        if not os.path.exists(layout.RunDir(path).plan):
            _create(session, request, layout.RunDir(path))


def _create(session: Session, request: Request, run: layout.RunDir) -> None:
    parts = request.get("parts")
    try:
        if parts:
            shutil.rmtree(request["workspace"], ignore_errors=True)
            session.store(form_of(parts[0]["tree"])).check_out(parts, request["workspace"])
    except MissingBase as problem:
        raise Refused("missing-base", str(problem)) from None
    except StoreError as problem:
        raise Refused("store", str(problem)) from None
    with open(session.runner, "rb") as source:
        setting.write_run_dir(run, request["plan"], request["script"], source.read())


def start(session: Session, request: Request) -> Any:
    """Begin a run, once. The values of secrets are in nothing but the environment of its runner."""
    run = layout.RunDir(session.run_dir(request))
    with _alone(session, run.path):
        if os.path.lexists(run.status):
            return
        if not os.path.exists(run.plan):
            raise Refused("missing", "there is no run %s" % run.path)
        _start(session, request, run)


def _start(session: Session, request: Request, run: layout.RunDir) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", session.code, "start", run.path],  # what run.runner has, but compiled
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(request.get("secrets") or {})},
        start_new_session=True,
    )
    if done.returncode and not os.path.lexists(run.status):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused("start", "the runner did not start: %s" % (said[-1] if said else "it said nothing"))


def submit(session: Session, request: Request) -> Any:
    """Put a run in line for Slurm, once. What becomes of that, its status says."""
    run = layout.RunDir(session.run_dir(request))
    with _alone(session, run.path):
        if not os.path.exists(run.plan):
            raise Refused("missing", "there is no run %s" % run.path)
        parts = request.get("parts") or []
        store = session.store(form_of(parts[0]["tree"]) if parts else SHA1).path
        job = slurm_job.Job(home=session.home, store=store, parts=tuple(parts))
        session.slurm.submit(run.path, job, str(request["script"]), request.get("secrets") or {})


@contextmanager
def _alone(session: Session, path: str) -> Iterator[None]:
    """Nobody else makes or begins the run meanwhile. A client whose link died asks once more over the next, while what
    it asked over the first may still be on its way; of what it asked before it went, nothing begins when it is gone."""
    directory = os.path.join(session.home, "locks")
    os.makedirs(directory, exist_ok=True)
    try:
        with locked(os.path.join(directory, "%d" % (zlib.crc32(os.fsencode(path)) % _LOCKS)), True, _PATIENCE):
            if session.is_gone():
                raise Refused("gone", "the client has gone")
            yield
    except Busy:
        raise Refused("busy", "another link of the same client began the run, and takes too long") from None


def watch(session: Session, request: Request) -> Any:
    """Tell what becomes of a run. One that was never begun, or is gone, has nothing to tell."""
    path = session.run_dir(request)
    with _alone(session, path):  # it may be beginning at this moment
        begun = os.path.lexists(layout.RunDir(path).status)
    if not begun:
        raise Refused("missing", "there is no run %s on the host any more" % path)
    session.tail.watch(int(request["key"]), path, int(request["offset"]), session.slurm.look(path))


def forget(session: Session, request: Request) -> Any:
    session.tail.forget(int(request["key"]))


def cancel(session: Session, request: Request) -> Any:
    """Ask a run to end, and end what a runner that died has left."""
    run = session.run_dir(request)
    try:
        ending.cancel(run)
    except ending.EndingError as problem:
        raise Refused("cancel", str(problem)) from None


def kill(session: Session, request: Request) -> Any:
    """End everything of a run now, without patience."""
    ending.kill(session.run_dir(request))


def collect(session: Session, request: Request) -> Any:
    """Send what a run has left for its client, as a tar stream."""
    run = session.run_dir(request)
    number = int(request["id"])
    bundle.send(run, lambda chunk: session.send(frames.part(number, chunk)))


def clear(session: Session, request: Request) -> Any:
    """Remove a run that its client has whole, with whatever it left; then its batch's directory, if that is empty.
    What rows share goes with the last that is here, unless the client says that more may come: `shared` is false."""
    run = session.run_dir(request)
    left = _remove(run)
    directory = os.path.dirname(run)
    if request.get("shared", True):
        left += _clear_environments(directory)
    while directory != os.path.join(session.home, "runs"):
        for name in (os.path.join(directory, "environments"), directory):
            try:
                os.rmdir(name)
            except OSError:
                pass
        directory = os.path.dirname(directory)
    return {"left": left}


def _clear_environments(batch: str) -> List[str]:
    """The venvs that rows of a batch share, where none of its rows is left."""
    try:
        names = os.listdir(batch)
        shared = [] if any(name.isdigit() for name in names) else os.listdir(os.path.join(batch, "environments"))
    except OSError:
        return []
    return [line for name in shared for line in _remove(os.path.join(batch, "environments", name))]


def _remove(run: str) -> List[str]:
    with slurm_job.leaving(run):
        return remove.remove_run(run)


def plan(session: Session, request: Request) -> Any:
    """What a run is, for a client that did not begin it."""
    run = layout.RunDir(session.run_dir(request))
    with open(run.script, encoding="utf-8", errors="surrogateescape") as source:
        return {"plan": layout.read_json(run.plan), "script": source.read()}


def questions(session: Session, request: Request) -> Any:
    return ask.ask(request["questions"], float(request["timeout"]))


def runs(session: Session, request: Request) -> Any:
    return listing.runs(session.home)


def prune(session: Session, request: Request) -> Any:
    """Forget objects and runners that nobody has used for so many days."""
    days = float(request["days"])
    for used in (session.runner, session.code):
        for entry in list(os.scandir(os.path.dirname(used))):
            if entry.path != used and entry.stat().st_mtime < time.time() - days * 86400:
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
    return session.store().prune(days) and session.store(SHA256).prune(days)


def hub_look(session: Session, request: Request) -> Any:
    from . import prefetching  # what speaks HTTP takes as long to load as all the rest

    return prefetching.look(session, request)


def hub_fetch(session: Session, request: Request) -> Any:
    from . import prefetching

    return prefetching.fetch(session, request)


REQUESTS = {
    "receive": Known(receive),
    "create": Known(create),
    "start": Known(start),
    "submit": Known(submit),
    "watch": Known(watch),
    "forget": Known(forget),
    "cancel": Known(cancel, aside=True, ends=True),
    "kill": Known(kill, aside=True, ends=True),
    "collect": Known(collect, aside=True),
    "clear": Known(clear, aside=True, ends=True),
    "ask": Known(questions, aside=True),
    "plan": Known(plan, aside=True),
    "runs": Known(runs, aside=True),
    "prune": Known(prune, aside=True),
    "hub-look": Known(hub_look, aside=True),
    "hub-fetch": Known(hub_fetch, aside=True),
}
