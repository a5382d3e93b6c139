"""Work in a thread, with a result that is waited for where it is needed.

As `concurrent.futures`, which loads logging, heaps and tracebacks: git's first answer is there sooner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Background(Generic[R]):
    """A call that goes on in a thread of its own, and ends nobody's process late."""

    def __init__(self, function: Callable[..., R], *args: Any) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = function(*args)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True, name=f"ci-tasks {function.__name__}")
        self._thread.start()

    def result(self) -> R:
        """Wait for the function's result. Raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result
