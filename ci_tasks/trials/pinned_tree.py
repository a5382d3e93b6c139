"""One tree for several runs: an edit of the checkout between two of them does not change what runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.checkout.delivery import materialize
from ci_tasks.config import HostSpec
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource


@dataclass(frozen=True)
class PinnedTree:
    """The tree, and a clone of it, with its origin/main."""

    checkout: Checkout
    directory: Path

    def wrap(self, open_executor: OpenExecutor) -> OpenExecutor:
        """Opens the same executors, on which this tree runs."""
        return lambda spec: cast(Executor, _PinnedExecutor(open_executor, spec, self))


@contextmanager
def pinned(source: CheckoutSource, base: str | None) -> Iterator[PinnedTree]:
    """What `source` is now, for as long as the block lasts. Raises CheckoutError."""
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        clone = Path(scratch) / "source"
        pin = PinnedTree(
            materialize(source.path, clone, rev=source.rev, base=base, overlays=source.given.overlays), clone
        )
        yield pin


class _PinnedExecutor:
    """An executor that runs the pinned tree instead of the checkout."""

    def __init__(self, open_executor: OpenExecutor, spec: HostSpec, pin: PinnedTree) -> None:
        self._executor, self._pin = open_executor(spec), pin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def snapshot(
        self, batch: Batch, source: Path, *, rev: str | None, base: str | None, overlays: Sequence[OverlaySource] = ()
    ) -> CodeSnapshot:
        # The checkout itself, as long as it is the same: the host was sent most of it before, and a clone's name tells
        # it nothing.
        code, checkout = (
            self._executor.snapshot(batch, source, rev=rev, base=base, overlays=overlays),
            self._pin.checkout,
        )
        if (code.checkout.commit, code.checkout.tree) == (checkout.commit, checkout.tree):
            return code
        code = self._executor.snapshot(batch, self._pin.directory, rev=checkout.commit, base=None)
        return cast(CodeSnapshot, _PinnedCode(code, checkout))


class _PinnedCode:
    """The clone's code, under the name of the checkout."""

    def __init__(self, code: CodeSnapshot, checkout: Checkout) -> None:
        self._code, self.checkout = code, checkout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)
