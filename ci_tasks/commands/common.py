"""What the commands share: how one is declared, how its flow ends, and the words of common flags."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from functools import partial
from typing import Any

from invoke.exceptions import Exit
from invoke.tasks import task

# Without short flags: they would be made up from what is free, and -r would mean --repo here and --reuse there.
command = partial(task, auto_shortflags=False)

REPO = "the checkout (else CI_TASKS_REPO, the current directory, ../slime, the embedded sample)"
REV = "read the checkout at this revision instead of its working tree"
WORKFLOW = "another workflow file than .github/workflows/pr-test.yml"
ONLY = "parts of row names, with commas; rows that contain one of them"
JSON = "print JSON"
BASE = "what changed tests are compared with (else origin/main)"
HOST = "a host of hosts.yaml"
LABEL = "a label of the workflow; `jobs` lists them"
RUN = "a run's id, a batch, the beginning of either, or `last`"
COMMON = {"repo": REPO, "rev": REV, "workflow": WORKFLOW, "base": BASE}


def finish(flow: Callable[[], int]) -> None:
    """Run a command's flow and leave with its exit code."""
    from ci_tasks.door import run

    code = run(flow)
    if code:
        raise Exit(code=code)


def repetitions(text: str) -> int | None:
    """The number of --repeat, None where the flag is not given. Raises UsageError."""
    if text and not (text.isdecimal() and int(text)):
        from ci_tasks.errors import UsageError

        raise UsageError(f"--repeat is a number of repetitions, not {text!r}", hint="such as --repeat 20")
    return int(text) if text else None


def print_json(value: Any) -> None:
    print(json_module.dumps(value, indent=2, ensure_ascii=False))
