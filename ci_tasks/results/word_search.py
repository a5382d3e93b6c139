"""Where the words of a log stand: searched for by this process, and in a large log by worker processes too.

RE2 takes seconds for a gigabyte, and each match costs Python as much again, so the blocks of a large log go to workers
in turn. A worker is this file as a program: it gets blocks in memory that it shares with us, and answers where words
begin. It decides nothing, so that the answers, in the order of the blocks, are those that one process would find.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any, NamedTuple

ALONE = 32 << 20  # bytes that are searched before workers start: starting one takes as long as 15 MB
_MOST_WORKERS = 4  # more would wait for whoever reads their answers
_SHARED = 1 << 20  # bytes of memory, enough for a block: a pipe would take it in pieces, and copy each twice
_SIZE = 8  # bytes of a message's length


class SearchedBlock(NamedTuple):
    """A block, where a word begins in it, and how many newlines it has."""

    text: bytes
    begins: Iterable[int]
    newlines: int


def search(blocks: Iterable[bytes], words: Any, alone: int = ALONE) -> Generator[SearchedBlock, None, None]:
    """Each block with its words. `words` is a compiled expression of bytes; workers help after `alone` bytes."""
    idle, busy = deque[_Worker](), deque[_Worker]()
    with ExitStack() as stack:
        for text in blocks:
            if alone <= 0 and not idle and not busy:
                idle.extend(_started(words, stack))
                alone = 0 if idle else sys.maxsize
            if alone > 0:
                alone -= len(text)
                yield _searched(text, words)
                continue
            answer = None
            if not idle:
                idle.append(busy.popleft())
                answer = idle[0].answer()
            worker = idle.popleft()
            worker.ask(text)  # before our caller works on the answer, so that all are busy
            busy.append(worker)
            if answer is not None:
                yield answer
        for worker in busy:
            yield worker.answer()


def _searched(text: bytes, words: Any) -> SearchedBlock:
    return SearchedBlock(text, (match.start() for match in words.finditer(text)), text.count(b"\n"))


def _started(words: Any, stack: ExitStack) -> Sequence[_Worker]:
    """Workers that end with the stack; none on one processor, or where none can be started. Only Linux shares memory
    that has no file."""
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    workers: list[_Worker] = []
    with suppress(OSError):
        while sys.executable and len(workers) < min(processors, _MOST_WORKERS) and processors > 1:
            workers.append(_Worker(words))
            stack.callback(workers[-1].end)
    return workers


class _Worker:
    """A process, and the block that it searches. If it was killed, the block is searched here."""

    def __init__(self, words: Any) -> None:
        import mmap
        import pickle
        import subprocess

        self._words, self._text = words, b""
        memory = os.memfd_create("ci-tasks log")  # no file: on a full disk a write to its mapping would kill us
        try:
            os.ftruncate(memory, _SHARED)
            self._memory = mmap.mmap(memory, _SHARED)
            # -I: the directory in which somebody starts us has no say in what a worker imports.
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[memory],
            )
        finally:
            os.close(memory)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._send(pickle.dumps(words))

    def ask(self, text: bytes) -> None:
        self._text = text
        if len(text) <= _SHARED:
            self._memory[: len(text)] = text
            self._send(array("Q", [len(text)]).tobytes())

    def answer(self) -> SearchedBlock:
        """Of the block that it was asked for last."""
        answer = array("Q", _received(self._answers) if len(self._text) <= _SHARED else b"")
        if answer:
            return SearchedBlock(self._text, answer[1:], answer[0])
        from ci_tasks.debug_log import LOGGER  # a worker loads this file alone

        LOGGER.debug("a block of %d bytes is searched by this process: no worker has done it", len(self._text))
        return _searched(self._text, self._words)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._memory.close()

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it has ended, and will not answer
            _send(self._requests, message)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_SIZE, "little"))
    stream.write(message)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    """The next message; empty where the other side ended, also within it."""
    size = int.from_bytes(stream.read(_SIZE), "little")
    message = stream.read(size)
    return message if len(message) == size else b""


def _work(descriptor: int) -> None:
    """What a worker does until its standard input ends. `descriptor` is the memory that it shares with us."""
    import mmap
    import pickle

    requests, answers, memory = sys.stdin.buffer, sys.stdout.buffer, mmap.mmap(descriptor, _SHARED)
    words = pickle.loads(_received(requests))
    while request := _received(requests):
        text = memory[: array("Q", request)[0]]
        _send(answers, array("Q", [text.count(b"\n"), *(match.start() for match in words.finditer(text))]).tobytes())


if __name__ == "__main__":
    _work(int(sys.argv[1]))
