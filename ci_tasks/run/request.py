"""What a person asked to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream


@dataclass(frozen=True)
class RunRequest:
    """What a person asked for. `host` names hosts and pools with commas between them. `out` is where `plan` writes,
    `fresh_env` says that no packages of earlier runs are used, `keep` that a failed run leaves its container and
    workspace. `image` replaces CI's. `rows` are whole names, and count instead of `only` where there are any.
    `by_runner`: the rows take no GPU locks themselves, so the runner does, and they start Ray.
    `slots` is how many rows without GPUs may run at once where nobody is there to start them one after another,
    `prefetch`: what they will download comes first.
    `run_needs`: jobs whose outputs decide the rows are run here. `probe`: the row's interpreters get it.
    `files`, name → text, are put into each run directory here: what a feature needs to know of the run when it ends."""

    label: str
    only: str | None = None
    host: str = "local"
    base: str | None = None
    out: Path | None = None
    fresh_env: bool = False
    keep: bool = False
    image: str | None = None
    rows: tuple[str, ...] = ()
    by_runner: bool = False
    slots: int = 0
    prefetch: bool = False
    run_needs: bool = True
    probe: bool = True
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionOptions:
    """How a label's rows are run: `jobs` at once on a host, left to themselves with `detach`. `resume` goes on with the
    newest command of the label that did not finish. `fail_fast`: the first failure ends the others; `retry_failed`: a
    failed row gets one more attempt. `events` gets what happens."""

    jobs: int | None = None
    detach: bool = False
    resume: bool = False
    fail_fast: bool = False
    retry_failed: bool = False
    events: EventStream | None = None
