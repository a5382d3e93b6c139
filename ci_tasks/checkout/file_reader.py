"""Files of a tree, read from git's objects by one process for all of them."""

from __future__ import annotations

import os
import subprocess
import threading
import weakref
from contextlib import suppress
from typing import IO, cast

from ci_tasks.checkout.git import Git, GitError


class FileReader:
    """Of the store that `git` works in. Several threads may use it; its process ends with it."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, name: str) -> bytes | None:
        """The file TREE:PATH, a name without a line end; links inside the tree are followed. None where there is no
        such file. Raises CheckoutError."""
        with self._lock:
            if self._process is None:
                self._process = self._git.start("cat-file", "--batch", "--follow-symlinks")
                weakref.finalize(self, _end, self._process)
            questions, answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
            with suppress(BrokenPipeError):  # then it gives no answer either
                questions.write(os.fsencode(name) + b"\n")
                questions.flush()
            head = self._git.read_answer(self._process, "cat-file").readline()
            if not head:
                raise GitError(f"git cat-file in {self._git.directory} has ended")
            if head.endswith(b" missing\n"):
                return None
            # What is no file has content, too: a directory's entries, or the target of a link that leads elsewhere.
            content = answers.read(int(head.split(b" ")[-1]) + 1)[:-1]
        return content if head.split(b" ")[1:2] == [b"blob"] else None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):  # what was not written to one that has ended
        process.communicate()
