"""`lint`: what is wrong with a checkout's CI before anything runs, from the working tree or a revision of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.features.lint import formats
from ci_tasks.features.lint.checkout_files import CheckoutFiles
from ci_tasks.features.lint.rules import lint
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.changed_tests import changed_jobs

JSON, GITHUB = "json", "github"
NO_FINDING, FINDINGS = "no finding", "findings"
EXIT_CODES = {NO_FINDING: 0, FINDINGS: 1}
_DOCS = (".md", ".rst")
_OTHER_WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml(\.j2)?")


def run_lint(source: CheckoutSource, form: str, rules: Collection[str]) -> int:
    """Print the findings of `rules` in the format `form`."""
    findings = [finding for finding in lint(checkout_files(source)) if finding.rule in rules]
    if form == JSON:
        print(formats.as_json(findings))
    elif form == GITHUB:
        print("\n".join(formats.github(findings)), end="\n" if findings else "")
    else:
        print("\n".join([source.headline, *formats.text(findings, terminal_width()), "", formats.summary(findings)]))
    return EXIT_CODES[FINDINGS if findings else NO_FINDING]


def checkout_files(source: CheckoutSource) -> CheckoutFiles:
    """The checkout's tracked and untracked files, or those of the revision."""
    snapshot = take_snapshot(source.path, store.home() / "sync" / "lint", rev=source.rev)
    names = snapshot.names()
    path = source.workflow.path.removesuffix(".j2")
    steps = [step for job in source.workflow.jobs.values() for step in job.steps]
    others = [name for name in names if _OTHER_WORKFLOW.fullmatch(name) and name.removesuffix(".j2") != path]
    commands = [*(step.run or "" for step in steps), *(snapshot.read_file(name) or "" for name in others)]
    return CheckoutFiles(
        workflow=source.workflow,
        text=snapshot.read_file(path),
        template=snapshot.read_file(f"{path}.j2"),
        rows=list_jobs(source),
        tests={name: snapshot.read_file(name) or "" for name in names if re.fullmatch(r"(?s)tests/.*\.py", name)},
        docs={name: snapshot.read_file(name) or "" for name in names if name.endswith(_DOCS)},
        files=frozenset(names),
        framework=event_context(source, secrets=()).repository.rpartition("/")[2],
        changed=[(job, frozenset(snapshot.select(job.rule.pathspecs))) for job in changed_jobs(source.workflow)],
        other_commands=[line for text in commands for line in text.splitlines()],
    )
