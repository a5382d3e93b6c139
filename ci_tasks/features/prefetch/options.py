"""Options of `prefetch`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.given_options import GivenOptions
from ci_tasks.cli.options import BASE, HOST, JSON, LABEL, ONLY, REPO, REV, WORKFLOW, switch


@dataclass(frozen=True)
class PrefetchOptions(GivenOptions):
    label: str = LABEL.field()
    host: str = HOST.field(default="local", commas=False)
    only: str | None = ONLY.field()
    dry_run: bool = switch("show what is there and what is missing, and download nothing").field()
    record: bool = switch("execute the tests under stubs, in a sandbox, which finds more than their source").field()
    json: bool = JSON.field()
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()
    base: str | None = BASE.field()
