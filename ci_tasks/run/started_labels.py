"""`jobs --changed`: which labels of all workflows a pull request with the checkout's changes would start."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.checkout.repository import default_base, open_repository, resolve_base
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.errors import WorkflowError, counted
from ci_tasks.given_values import GivenValues
from ci_tasks.run.checkout_source import event_context, find_checkout, open_source, workflow_files
from ci_tasks.workflow.triggers import LabelStart, label_starts


def started_labels(
    repo: str | None, rev: str | None, base: str | None, given: GivenValues
) -> tuple[str, list[LabelStart]]:
    """What was compared, and an entry for each label of all workflows. Raises CheckoutError for a checkout without the
    base. Nothing of the checkout is executed."""
    path, _ = find_checkout(repo)
    commit, name = (resolve_base(path, base), base) if base else default_base(path)
    changed, labels = _changed_files(path, rev, commit), list[LabelStart]()
    ref = open_repository(path).git.text_or_none("rev-parse", "--symbolic-full-name", name) or ""
    branch = re.sub("^refs/(heads|remotes/[^/]+)/", "", ref)  # "" for a commit
    for file in workflow_files(path, rev):
        try:
            source = open_source(str(path), rev, file, given)
            event = event_context(source, secrets=source.workflow.secrets)
            labels += label_starts(source.workflow, replace(event, base=branch or event.base), changed)
        except (WorkflowError, re.error) as error:
            why = error.message if isinstance(error, WorkflowError) else f"invalid filter pattern: {error}"
            labels.append(LabelStart(file, "-", "?", None, why))
    return f"{counted(len(changed), 'changed file')} since {name}", labels


def _changed_files(path: Path, rev: str | None, base: str) -> list[str]:
    """What a pull request would show as changed: since the merge base, and what is not committed yet."""
    git = open_repository(path).git
    names = git.null_separated("diff", "-z", "--name-only", "--no-renames", f"{base}...{rev or 'HEAD'}")
    if rev is None:
        with TemporaryDirectory(prefix="ci-tasks-") as scratch:
            names += take_snapshot(path, Path(scratch)).checkout.dirty
    return sorted(set(names))
