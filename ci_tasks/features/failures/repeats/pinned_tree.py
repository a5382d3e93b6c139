"""One tree and one environment for several runs: whoever edits the checkout between two of them does not change what
runs, and each begins with what the install steps of the first made, as they left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.clone import materialize
from ci_tasks.config import HostSpec
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, Say
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.records import Checkout
from ci_tasks.results.batch_state import write_phase
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource


@dataclass(frozen=True)
class PinnedTree:
    """The tree, and a clone of it, with its origin/main. `keepers` are the executors that keep the environments, by
    host, each with its batch."""

    checkout: Checkout
    directory: Path
    keepers: dict[str, tuple[Executor, Batch]] = field(default_factory=dict)

    def wrap(self, open_executor: OpenExecutor) -> OpenExecutor:
        """Opens the same executors, on which this tree runs."""
        return lambda spec: cast(Executor, _PinnedExecutor(open_executor, spec, self))

    def mark_in_use(self) -> None:
        """`clean` removes nothing of a batch whose command is not over."""
        for _, batch in self.keepers.values():
            write_phase(batch.path, "running")

    def close(self) -> None:
        for executor, batch in self.keepers.values():
            executor.close()
            write_phase(batch.path, "ended")


@contextmanager
def pinned(source: CheckoutSource, base: str | None) -> Iterator[PinnedTree]:
    """What `source` is now, for as long as the block lasts. Raises CheckoutError."""
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        clone = Path(scratch) / "source"
        pin = PinnedTree(
            materialize(source.path, clone, rev=source.rev, base=base, overlays=source.given.overlays), clone
        )
        try:
            yield pin
        finally:
            pin.close()


class _PinnedExecutor:
    """An executor that runs the pinned tree instead of the checkout, in the environments that the keeper has."""

    _batch: Batch

    def __init__(self, open_executor: OpenExecutor, spec: HostSpec, pin: PinnedTree) -> None:
        self._executor, self._pin = open_executor(spec), pin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def snapshot(
        self,
        batch: Batch,
        source: Path,
        *,
        rev: str | None,
        base: str | None,
        overlays: Sequence[OverlaySource] = (),
    ) -> CodeSnapshot:
        self._batch = batch
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

    def environments_directory(self) -> str:
        return self._keeper.environments_directory()

    def prepare_environments(
        self, setups: Sequence[SharedSetup], say: Say, should_continue: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[str | None]:
        if setups and self._executor.spec.name not in self._pin.keepers:
            self._executor.keep_environments()
            self._pin.keepers[self._executor.spec.name] = self._executor, self._batch
        return self._keeper.prepare_environments(setups, say, should_continue)

    @property
    def _keeper(self) -> Executor:
        """The first executor that made environments; it stays open for the others."""
        return self._pin.keepers.get(self._executor.spec.name, (self._executor, None))[0]

    def close(self) -> None:
        if self._executor.spec.name not in self._pin.keepers or self._keeper is not self._executor:
            self._executor.close()


class _PinnedCode:
    """The clone's code, under the name of the checkout."""

    def __init__(self, code: CodeSnapshot, checkout: Checkout) -> None:
        self._code, self.checkout = code, checkout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)
