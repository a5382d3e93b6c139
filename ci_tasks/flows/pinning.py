"""One tree for several runs: whoever edits the checkout between two of them does not change what runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from ci_tasks.flows.site import Code, OpenSite, Site
from ci_tasks.flows.source import Source
from ci_tasks.model import Checkout, HostSpec
from ci_tasks.runs.store import Batch
from ci_tasks.sync.snapshot import materialize


@dataclass(frozen=True)
class Pin:
    """The tree, and a clone of it, with its origin/main."""

    checkout: Checkout
    directory: Path

    def around(self, open_site: OpenSite) -> OpenSite:
        """Opens the same sites, on which this tree runs."""
        return lambda spec: cast(Site, _PinnedSite(open_site, spec, self))


@contextmanager
def pinned(source: Source, base: str | None) -> Iterator[Pin]:
    """What `source` is now, for as long as the block lasts. Raises CheckoutError."""
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        clone = Path(scratch) / "source"
        yield Pin(materialize(source.path, clone, rev=source.rev, base=base), clone)


class _PinnedSite:
    """A site in all but the tree that it takes."""

    def __init__(self, open_site: OpenSite, spec: HostSpec, pin: Pin) -> None:
        self._site, self._pin = open_site(spec), pin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def take(self, batch: Batch, source: Path, *, rev: str | None, base: str | None) -> Code:
        # The checkout itself, as long as it is the same: the host was sent most of it before, and a clone's name tells
        # it nothing.
        code, wanted = self._site.take(batch, source, rev=rev, base=base), self._pin.checkout
        if (code.checkout.commit, code.checkout.tree) == (wanted.commit, wanted.tree):
            return code
        code = self._site.take(batch, self._pin.directory, rev="HEAD", base=None)
        return cast(Code, _PinnedCode(code, wanted))


class _PinnedCode:
    """The clone's code, under the name of the checkout."""

    def __init__(self, code: Code, checkout: Checkout) -> None:
        self._code, self.checkout = code, checkout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)
