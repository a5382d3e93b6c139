"""What a client speaks to: requests on standard input, answers on standard output, until the link is gone.

Every request can be asked again, so that a client whose link died in the middle asks once more. Nothing here outlives
the link but what was asked for: runs are processes of their own.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Any, Dict, Iterator, List

from .. import process
from . import frames
from .service import REQUESTS, Refused, Session
from .tail import Tail

SILENCE = 40.0  # seconds without a word of the client, which beats all the time: then its link is dead
LAST_WORK = 180.0  # seconds that what is being ended or removed may take after that
_CHUNK = 1 << 18


def main(home: str, runner: str, code: str) -> None:
    """Serve one client; `runner` is the zip file that this code came in, `code` where it is loaded from. Never
    returns."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    link = _Link()
    link.send(frames.MAGIC + frames.message({"hello": _hello(home)}))
    tail = Tail(link.send)
    tail.start()
    session = Session(
        home=home, runner=runner, code=code, tail=tail, send=link.send, chunks=link.chunks, is_gone=link.is_gone
    )
    unfinished: List[threading.Thread] = []
    for request in link.requests():
        unfinished = [thread for thread in unfinished if thread.is_alive()] + _answer(request, session, link)
    until = time.monotonic() + LAST_WORK
    for thread in unfinished:  # half of it would be worse than none: nobody may come to ask once more
        thread.join(max(0.0, until - time.monotonic()))
    session.slurm.finish(until)
    os._exit(0)


def _hello(home: str) -> Dict[str, Any]:
    return {
        "home": home,
        "python": [sys.executable, "%d.%d.%d" % sys.version_info[:3]],
        "boot_id": process.boot_id(),
        "time": time.time(),
    }


def _answer(request: Dict[str, Any], session: Session, link: _Link) -> List[threading.Thread]:
    """Perform a request. Returns the thread that does, where it is to come to its end."""
    do, number = request.get("do"), request.get("id")
    known = REQUESTS.get(str(do))
    if known is None:
        link.send(frames.message({"re": number, "error": {"code": "unknown", "message": "no request %r" % do}}))
        return []

    def reply() -> None:
        try:
            answer = {"ok": known.perform(session, request)}
        except Refused as refusal:
            answer = {"error": {"code": refusal.code, "message": str(refusal)}}
        except Exception as error:  # whatever it is, the client must hear of it
            answer = {"error": {"code": "failed", "message": str(error) if isinstance(error, OSError) else repr(error)}}
        try:
            link.send(frames.message({"re": number, **answer}))
        except OSError:  # the client is gone, as whoever reads its requests will find
            pass

    if not known.aside:
        reply()
        return []
    thread = threading.Thread(target=reply, daemon=True)
    thread.start()
    return [thread] if known.ends else []


class _Link:
    """Frames in and out. A pack's bytes come between requests, and are read by the request that they belong to."""

    def __init__(self) -> None:
        self._reader = frames.Reader()
        self._frames = self._read()
        self._writing = threading.Lock()

    def send(self, data: bytes) -> None:
        with self._writing:
            while data:
                data = data[os.write(1, data) :]

    def is_gone(self) -> bool:
        """Whether nobody is at the other end any more, although some of their words may still be unread."""
        if not hasattr(select, "poll"):
            return False
        looking = select.poll()
        looking.register(0, select.POLLIN)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in looking.poll(0))

    def requests(self) -> Iterator[Dict[str, Any]]:
        import json

        for kind, payload in self._frames:
            if kind == frames.JSON:
                yield json.loads(payload.decode("ascii"))

    def chunks(self) -> Iterator[bytes]:
        """The bytes that belong to the request at hand."""
        for kind, payload in self._frames:
            if kind == frames.DATA:
                if not payload:
                    return
                yield payload
        raise Refused("cut", "the link ended in the middle of a pack")

    def _read(self) -> Iterator[frames.Frame]:
        while select.select([0], [], [], SILENCE)[0]:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                return
            held: List[frames.Frame] = list(self._reader.feed(chunk))
            yield from held
