"""A checkout, or a revision of it → what its CI covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ci_tasks.checkout.repository import find_commit, open_repository, resolve_rev
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.features.coverage.coverage import CheckoutCoverage, labels
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import list_jobs


def _silent(_: str) -> None:
    """Shows no messages."""


_READ = ("tests", "scripts/models")  # the files of a revision that are read


def checkout_coverage(
    source: CheckoutSource, *, static: bool = False, say: Callable[[str], None] = _silent
) -> CheckoutCoverage:
    """What the CI of a checkout, or of its revision, covers. Raises CheckoutError, WorkflowError."""
    read = _reader(source)
    with open_recorder(source.path, read, HELPERS, rev=source.rev, static=static, say=say) as recorder:
        label_coverages = labels(list_jobs(source), read, recorder.record)
    return CheckoutCoverage(_checkout_name(source), source.workflow.place, label_coverages)


def _checkout_name(source: CheckoutSource) -> str:
    """The checkout's name for readers elsewhere: without a path of this machine."""
    name = "the embedded sample" if source.sample else event_context(source, secrets=()).repository
    commit = find_commit(source.path, source.rev or "HEAD")
    if not commit or source.sample:
        return f"{name} at {source.rev}" if source.rev else name
    changed = source.rev is None and take_snapshot(source.path, store.home() / "sync" / "lint").checkout.dirty
    return f"{name} at {commit[:7]}{' with local changes' if changed else ''}"


def _reader(source: CheckoutSource) -> Callable[[str], str | None]:
    """Gives the text of a file of the checkout."""
    return partial(_text, source.path) if source.rev is None else _revision(source.path, source.rev).get


def _text(root: Path, name: str) -> str | None:
    """A file's text; nothing outside the checkout, whatever a test's name or a link in it says."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="replace")


def _revision(root: Path, rev: str) -> Mapping[str, str]:
    """The files of a revision that are read, by path: two calls of git for all of them."""
    git = open_repository(root).git
    commit = resolve_rev(root, rev)
    blobs: dict[str, str] = {}
    for entry in git.null_separated("ls-tree", "-r", "-z", commit, "--", *_READ):
        head, _, name = entry.partition("\t")
        mode, kind, blob = head.split(" ")
        if kind == "blob" and mode != "120000":
            blobs[name] = blob
    answer = git.run("cat-file", "--batch", input="".join(f"{blob}\n" for blob in blobs.values()).encode())
    texts = {}
    for name in blobs:
        head_line, _, rest = answer.partition(b"\n")
        size = int(head_line.split(b" ")[2])
        texts[name] = rest[:size].decode("utf-8", errors="replace")
        answer = rest[size + 1 :]
    return texts
