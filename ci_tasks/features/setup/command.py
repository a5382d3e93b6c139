"""The command `setup`."""

from __future__ import annotations

import os
from dataclasses import asdict

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, REPO, WORKFLOW, number, switch, text
from ci_tasks.cli.shared import people_read_stderr, print_json


@dataclass(frozen=True)
class SetupOptions:
    repo: str | None = REPO.field()
    workflow: str | None = WORKFLOW.field()
    label: str | None = text("the label to try (else the one with the most rows that need no GPU)", "LABEL").field()
    rows: int = number("number of rows to run", "rows", default=5).field()
    index: str | None = text("a package index to use instead of CI's, such as a mirror", "URL").field()
    yes: bool = switch("install, and write to ~/.config/ci-tasks/hosts.yaml, without asking").field()
    json: bool = JSON.field()


def setup(options: SetupOptions) -> int:
    """
    ci-tasks setup --repo ~/slime
    ci-tasks setup --repo ~/slime --index https://mirror.example.com/simple --yes

    Finds the Python that CI names, asks, runs CI's install steps and five rows, and writes the overrides that they
    needed. Exit code 0 if the rows passed, 1 if one failed, 125 if they are blocked.
    """
    from ci_tasks.errors import UsageError
    from ci_tasks.features.setup.setup import set_up

    may_ask = not options.json and os.isatty(0) and os.isatty(1)

    def confirm(plan: str) -> bool:
        print(f"\n{plan}", flush=True)
        if not options.yes and not may_ask:
            raise UsageError("nothing was installed: without a terminal, setup needs --yes", hint="add `--yes`")
        return options.yes or input("Continue? [Y/n] ").strip().lower() in ("", "y", "yes")

    with people_read_stderr(options.json):
        result = set_up(options.repo, options.workflow, options.label, options.rows, options.index, confirm)
    print_json(asdict(result), when=options.json)
    return result.exit_code
