"""One conversation with a host's `serve`: requests out, answers and news in, and the knowledge that the link is dead.

A dead link is noticed by silence: the host beats every two seconds whatever else it does. Requests go out without
waiting for earlier answers; the host works them off in order.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ci_tasks.errors import Blocked, printable
from ci_tasks.hosts.link import LinkDied, Stream
from ci_tasks.runner.link import frames

SILENCE = 10.0  # seconds without a byte after which the link is dead
BEAT = 5.0
_CHUNK = 1 << 17
_GREETING = 1 << 16  # bytes that a login script may print before we give up on it

# Loads the runner that stands on standard input, or that an earlier client left, and hands it the rest. It is unpacked,
# since Python keeps no byte code of what lies in a zip file: to compile it each time is most of a warm start.
_BOOTSTRAP = """
import hashlib, os, sys
MAGIC = {magic!r}
def say(mark, words):
    os.write(1, MAGIC + mark + words.encode())
    sys.exit(0)
def take(count):
    taken = b""
    while len(taken) < count:
        chunk = os.read(0, min(count - len(taken), 1 << 16))
        if not chunk:
            sys.exit(3)
        taken += chunk
    return taken
if sys.version_info < (3, 8):
    say({old!r}, sys.version.split()[0])
home = os.path.realpath(os.path.expanduser({home!r}))
runner = os.path.join(home, "runners", {digest!r} + ".pyz")
size = int(take(12))
if size:
    archive = take(size)
    if not os.path.exists(runner):
        os.makedirs(os.path.dirname(runner), mode=0o700, exist_ok=True)
        beside = runner + ".%d" % os.getpid()
        try:
            with open(beside, "wb") as out:
                out.write(archive)
            os.replace(beside, runner)
        except BaseException:
            os.unlink(beside)
            raise
elif not os.path.exists(runner):
    say({asks!r}, "")
os.utime(runner)
code = os.path.join(home, "code", {digest!r})
try:
    if not os.path.exists(code):
        import zipfile
        os.makedirs(code + ".%d" % os.getpid(), mode=0o700)
        zipfile.ZipFile(runner).extractall(code + ".%d" % os.getpid())
        os.rename(code + ".%d" % os.getpid(), code)
    os.utime(code)
except OSError:
    code = runner
sys.path.insert(0, code)
from runner.link.serve import main
main(home, runner, code)
"""


class HostRefused(Exception):
    """The host cannot do what was asked; `code` is the host's, for our code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class RunnerWanted(Exception):
    """The host does not have our runner any more: it has to be sent along."""


class Pending:
    """An answer that is on its way."""

    def __init__(self, take_part: Callable[[bytes], None] | None = None) -> None:
        self._there = threading.Event()
        self._answer: dict[str, Any] = {}
        self.take_part = take_part

    def wait(self) -> Any:
        """The answer. Raises HostRefused, LinkDied."""
        self._there.wait()
        if "error" in self._answer:
            raise HostRefused(self._answer["error"]["code"], self._answer["error"]["message"])
        if "ok" not in self._answer:
            raise LinkDied(self._answer.get("died", "the link is dead"))
        return self._answer["ok"]

    def is_there(self, seconds: float) -> bool:
        """Whether the answer, or the link's death, has come within so long."""
        return self._there.wait(seconds)

    def settle(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        self._there.set()


def command(home: str, digest: str) -> str:
    """What the host's login shell is to run, be it sh, csh or fish: no character in it means anything to them."""
    text = _BOOTSTRAP.format(
        magic=frames.MAGIC, old=frames.IS_TOO_OLD, asks=frames.ASKS_FOR_RUNNER, home=home, digest=digest
    )
    code = base64.b64encode(text.encode()).decode()
    # -S: nothing of site-packages is needed, and what is installed there may take longer to load than all of ours.
    return f"exec python3 -I -S -c 'import base64;exec(base64.b64decode(\"{code}\"))'"


class Channel:
    """`news` gets every message that answers nothing, and `log` the bytes of logs; both in the reader's thread."""

    def __init__(
        self, stream: Stream, news: Callable[[dict[str, Any]], None], log: Callable[[int, int, bytes], None]
    ) -> None:
        self._stream = stream
        self._news, self._log = news, log
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._writing = threading.RLock()
        self._spoken = time.monotonic()
        self.died = threading.Event()
        self.reason = ""

    def begin(self, archive: bytes) -> None:
        """Send what the bootstrap waits for: the runner, or nothing where the host has it."""
        self._stream.send(b"%012d" % len(archive) + archive)

    def hello(self) -> dict[str, Any]:
        """Wait for the host's first words. Raises LinkDied, RunnerWanted, Blocked."""
        self._stream.settimeout(SILENCE * 2)
        try:
            return self._hello()
        except TimeoutError:  # a link that died at this very moment; the next one may live
            raise LinkDied(f"not a word from the host for {SILENCE * 2:g} s") from None

    def _hello(self) -> dict[str, Any]:
        said = b""
        while frames.MAGIC not in said:
            chunk = self._stream.recv(_CHUNK)
            said += chunk
            if not chunk or len(said) > _GREETING:
                raise self._no_hello(said)
        rest = said.partition(frames.MAGIC)[2] or self._stream.recv(_CHUNK)
        if rest[:1] == frames.ASKS_FOR_RUNNER:
            raise RunnerWanted
        if rest[:1] == frames.IS_TOO_OLD:
            version = printable(rest[1:].decode(errors="replace"))
            raise Blocked(
                f"python3 there is {version}", hint="ci-tasks needs Python 3.8 or newer as python3 on the host"
            )
        self._reader = frames.Reader()
        got = list(self._reader.feed(rest))
        while not got:
            chunk = self._stream.recv(_CHUNK)
            if not chunk:
                raise self._no_hello(b"")
            got = list(self._reader.feed(chunk))
        found: dict[str, Any] = json.loads(got[0][1])["hello"]
        threading.Thread(target=self._read, args=(got[1:],), daemon=True, name="ci-tasks reader").start()
        threading.Thread(target=self._beat, daemon=True, name="ci-tasks beat").start()
        return found

    def post(self, do: str, take_part: Callable[[bytes], None] | None = None, **fields: Any) -> Pending:
        """Ask, and go on. Raises LinkDied."""
        number = next(self._numbers)
        pending = self._pending[number] = Pending(take_part)
        self._send(frames.message({"do": do, "id": number, **fields}))
        return pending

    def post_pack(self, pack: Iterable[bytes], form: str) -> Pending:
        """Send one pack of objects; nothing else comes in between. Raises LinkDied."""
        with self._writing:
            pending = self.post("receive", form=form)
            try:
                for chunk in pack:
                    self._send(frames.frame(frames.DATA, chunk))
            except LinkDied:
                raise
            except BaseException:  # the host waits for the rest, and would take whatever comes next for a part of it
                self.close("the pack broke off")
                raise
            self._send(frames.frame(frames.DATA))
        return pending

    def close(self, reason: str = "closed") -> None:
        """Give up: whoever waits for an answer hears that the link is dead."""
        if not self.died.is_set():
            self.reason = reason
            self.died.set()
            self._stream.close()
        for pending in [self._pending.pop(number) for number in list(self._pending)]:
            pending.settle({"died": self.reason})

    def _send(self, data: bytes) -> None:
        try:
            with self._writing:
                if self.died.is_set():
                    raise LinkDied(self.reason)
                self._stream.send(data)
                self._spoken = time.monotonic()
        except LinkDied as error:
            self.close(str(error))
            raise

    def _beat(self) -> None:
        while not self.died.wait(1.0):
            if time.monotonic() - self._spoken > BEAT and self._writing.acquire(blocking=False):
                try:
                    self._send(frames.frame(frames.BEAT))
                except LinkDied:
                    return
                finally:
                    self._writing.release()

    def _read(self, got: list[frames.Frame]) -> None:
        self._stream.settimeout(SILENCE)
        try:
            for kind, payload in got:
                self._take(kind, payload)
            while not self.died.is_set():
                chunk = self._stream.recv(_CHUNK)
                if not chunk:
                    raise LinkDied("the host ended the connection")
                for kind, payload in self._reader.feed(chunk):
                    self._take(kind, payload)
        except TimeoutError:
            self.close(f"not a word from the host for {SILENCE:g} s")
        except (LinkDied, frames.FrameError) as error:
            self.close(str(error))
        except BaseException as error:  # a full disk here, say: nobody may wait for ever
            self.close(str(error))

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.LOG:
            self._log(*frames.read_log(payload))
        elif kind == frames.PART:
            number, chunk = frames.read_part(payload)
            waiting = self._pending.get(number)
            if waiting is not None and waiting.take_part is not None:
                waiting.take_part(chunk)
        elif kind == frames.JSON:
            said = json.loads(payload)
            if "re" not in said:
                self._news(said)
            elif said["re"] in self._pending:
                self._pending.pop(said["re"]).settle(said)

    def _no_hello(self, said: bytes) -> Exception:
        code = self._stream.exit_status()
        words = printable((said + self._stream.stderr_tail()).decode(errors="replace")).strip()
        last = words.splitlines()[-1] if words else "nothing"
        if code in (126, 127) or "not found" in last:
            return Blocked(
                f"no python3 there ({last})", hint="ci-tasks needs Python 3.8 or newer as python3 on the host"
            )
        if code is None and not words:
            return LinkDied("the host ended the connection before it said anything")
        return Blocked(f"the host does not answer as ci-tasks does; it said: {last}")
