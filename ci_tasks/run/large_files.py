"""Large untracked files are announced before they are copied or sent; at a terminal, the person may decline."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ci_tasks.checkout.snapshot import large_untracked_files
from ci_tasks.errors import UsageError, printable

_SHOWN = 5
_HINT = "to leave them behind, add them to .gitignore or .git/info/exclude"


def announce_large_files(checkout: Path, *, to_host: bool, ask: Callable[[str], str] | None = None) -> None:
    """Print them with their sizes, and ask before they go to a host. `ask` replaces the terminal in tests. Raises
    UsageError where the answer is no."""
    files = large_untracked_files(checkout)
    if not files:
        return
    total = sum(size for _, size in files)
    print(f"large untracked files travel with the working tree, {_size(total)} in all ({_HINT}):")
    for name, size in files[:_SHOWN]:
        print(f"  {_size(size)}  {printable(name)}")
    if len(files) > _SHOWN:
        print(f"  and {len(files) - _SHOWN} more", flush=True)
    if not to_host:
        return
    if ask is None:
        if not (os.isatty(0) and os.isatty(1)):
            return
        ask = input
    if ask("send them? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was sent", hint=_HINT)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
