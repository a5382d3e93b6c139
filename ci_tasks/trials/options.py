"""The options of `reproduce`, `compare` and `bisect`."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.shared import RowOptions

_LABEL = "the label, if the log does not show it"
_ON_MY_TREE = "run the working tree instead of CI's commit, to show that it is fixed"
_BASE = "the revision to compare with (default: merge base with origin/main, or main)"
_CI = "first show how often each row failed in CI's last 20 runs, and whether with its last failure here"
_MAX_RUNS = "give up after N new runs of a row, both sides together"
_ROW = "the row's name, or a part of it that matches no other row"
_AXIS = "what to search: commit; or, at one commit: image, submodule:PATH, or overlay:NAME (of --with)"
_IMAGES = "with --axis image: images from good to bad, with commas, or a file with one per line; name them by digest"
_SIGNATURE = "the failure to look for, as `triage` names it (default: the most frequent one at --bad)"
BISECT_EXAMPLE = "`ci-tasks bisect LABEL --only ROW --good REV [--bad REV]`; `ci-tasks jobs` lists the rows"


@dataclass(frozen=True)
class TrialOptions(RowOptions):
    """What all of them take. A trial runs on one host."""

    host: str = replace(flags.HOST, default="local", commas=False).field()
    image: str | None = flags.IMAGE.field()
    repo: str | None = flags.REPO.field()
    workflow: str | None = flags.WORKFLOW.field()
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()


@dataclass(frozen=True)
class JournalOptions(TrialOptions):
    """Options of the commands that continue an earlier command."""

    label: str = flags.LABEL.field()
    fresh: bool = flags.switch("start over, without the results so far").field()


@dataclass(frozen=True)
class ReproduceOptions(TrialOptions):
    log: str | None = flags.FAILED_LOG.field()
    url: str | None = flags.FAILED_URL.field()
    job: str | None = flags.FAILED_JOB.field()
    on_my_tree: bool = flags.switch(_ON_MY_TREE, excludes=("rev",)).field()
    repeat: int | None = flags.REPEAT.field(help=f"{flags.REPEAT.help}; one equal failure suffices")
    label: str | None = flags.text(_LABEL, "LABEL", complete=flags.LABEL.complete).field()
    only: str | None = flags.ONLY.field(help="the row, if the log does not show it")
    rev: str | None = flags.REV.field(help="the commit to run (default: the log's)")
    keep: bool = flags.KEEP.field()


@dataclass(frozen=True)
class CompareOptions(JournalOptions):
    only: str | None = flags.ONLY.field()
    base: str | None = flags.BASE.field(help=_BASE)
    ci: bool = flags.switch(_CI, feature="ci_history").field()
    max_runs: int = flags.number(_MAX_RUNS, "runs", minimum=6, default=20).field()


@dataclass(frozen=True)
class BisectOptions(JournalOptions):
    only: str = flags.ONLY.field(help=_ROW, metavar="ROW", commas=False, required=True, hint=BISECT_EXAMPLE)
    axis: str = flags.text(_AXIS, "AXIS", default="commit").field()
    good: str | None = flags.text("a revision where the row passes", "REV").field()
    bad: str | None = flags.text("a revision where it fails, always or sometimes (default: HEAD)", "REV").field()
    images: str | None = flags.text(_IMAGES, "LIST", excludes=("image", "good", "bad")).field()
    rev: str | None = flags.REV.field(help="the commit to run, if --axis is not commit (default: HEAD)")
    signature: str | None = flags.text(_SIGNATURE, "TEXT").field()
    first_parent: bool = flags.switch("treat a merge as one commit").field()
