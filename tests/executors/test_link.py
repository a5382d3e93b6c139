"""The last words of a command that has ended, which its host may still have to send."""

import threading
from types import SimpleNamespace

import pytest

from ci_tasks.executors import link
from ci_tasks.executors.link import StderrTail


class Pipe:
    """Gives one chunk each time that it is let."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = iter(chunks)
        self._asked, self._let = threading.Semaphore(0), threading.Semaphore(0)

    def read(self, n: int) -> bytes:
        self._asked.release()
        self._let.acquire()
        return next(self._chunks, b"")

    def give(self) -> None:
        self._let.release()

    def wait_until_asked(self) -> None:
        """What was given before is kept then."""
        assert self._asked.acquire(timeout=60)


def test_the_last_words_are_waited_for_as_long_as_more_of_them_come(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(b"a lot, ", b"more, ", b"last\n")

    class OneChunkAWait(threading.Event):
        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            pipe.give()
            if self.waits > 3:
                return super().wait(60)
            pipe.wait_until_asked()
            return False

    monkeypatch.setattr(link, "threading", SimpleNamespace(Thread=threading.Thread, Event=OneChunkAWait))
    tail = StderrTail(pipe.read)
    monkeypatch.undo()
    pipe.wait_until_asked()
    assert tail.last() == b"a lot, more, last\n"


def test_a_standard_error_that_is_held_open_without_a_word_delays_the_end_but_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_QUIET_S", 0.01)
    pipe = Pipe(b"kept")
    tail = StderrTail(pipe.read)
    pipe.wait_until_asked()
    pipe.give()
    pipe.wait_until_asked()
    assert tail.last() == b"kept"


def test_one_that_goes_on_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_QUIET_S", 0.01)
    monkeypatch.setattr(link, "_LAST_WORDS_S", 0.05)
    over = threading.Event()
    tail = StderrTail(lambda n: b"" if over.wait(0.001) else b"more ")
    try:
        assert tail.last().endswith(b"more ")
    finally:
        over.set()
