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

        def opened(spec: HostSpec) -> Executor:
            executor = open_executor(spec)

            def snapshot(
                batch: Batch, source: Path, *, rev: str | None, base: str | None, overlays: Sequence[OverlaySource] = ()
            ) -> CodeSnapshot:
                # The checkout itself, as long as it is the same: the host was sent most of it before.
                code = executor.snapshot(batch, source, rev=rev, base=base, overlays=overlays)
                if (code.checkout.commit, code.checkout.tree) == (self.checkout.commit, self.checkout.tree):
                    return code
                code = executor.snapshot(batch, self.directory, rev=self.checkout.commit, base=None)
                return cast(CodeSnapshot, _Changed(code, checkout=self.checkout))

            return cast(Executor, _Changed(executor, snapshot=snapshot))

        return opened


class _Changed:
    """An object with some other attributes."""

    def __init__(self, original: Any, **attributes: Any) -> None:
        self._original = original
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def pinned(source: CheckoutSource, base: str | None) -> Iterator[PinnedTree]:
    """What `source` is now, for as long as the block lasts. Raises CheckoutError."""
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        clone = Path(scratch, "source")
        overlays = source.given.overlays
        yield PinnedTree(materialize(source.path, clone, rev=source.rev, base=base, overlays=overlays), clone)
