"""The rule by which a workflow finds the tests that a change touches, read from its script and never executed.

slime's detection job does it with `git diff --name-only --diff-filter=AM BASE...HEAD -- PATHSPEC…`, and takes the GPUs
of each file from its line `NUM_GPUS = n` with grep. A script that does it in another way gives no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.workflow import shell
from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.rows import trigger_of
from ci_tasks.workflow.suite import ChangedRule

_TEST = re.compile(r"tests/(?:.*/)?test_[^/]+\.py")
_CAPTURED = re.compile(r"(\w+)=\$\(…\)")  # NAME=$(…), as shell.commands gives it
_CLASSES = {"[[:space:]]": r"\s", "[[:blank:]]": r"[ \t]", "[[:digit:]]": r"\d", r"\K": ""}


@dataclass(frozen=True)
class ChangedJob:
    """A job whose rows are changed tests, and the rule that finds them. `trigger` is its PR label."""

    job: str
    trigger: str | None
    rule: ChangedRule

    @property
    def name(self) -> str:
        return self.trigger or self.job


def changed_jobs(workflow: Workflow) -> Iterator[ChangedJob]:
    """The jobs whose matrix comes from a job with such a script."""
    for job in workflow.jobs.values():
        needed = [workflow.jobs[name] for name in job.needs if name in workflow.jobs and "needs." in str(job.matrix)]
        rules = (read_rule(step.run or "", step.shell or other.shell) for other in needed for step in other.steps)
        if rule := next(filter(None, rules), None):
            yield ChangedJob(job.id, trigger_of(workflow, job), rule)


def is_test(path: str) -> bool:
    return _TEST.fullmatch(path) is not None


def read_rule(script: str, shell_name: str | None) -> ChangedRule | None:
    """The rule of a script that GitHub runs with this `shell:`; None for a script without one."""
    commands = list(shell.commands(script))
    for words in commands:
        if words[:2] == ["git", "diff"] and "--" in words and {"--name-only", "--name-status"} & set(words):
            at = words.index("--")
            pathspecs = tuple(words[at + 1 :])
            if not pathspecs or any("$" in word for word in words[at:]):
                return None
            filters = [word.partition("=")[2] for word in words[:at] if word.startswith("--diff-filter=")]
            return _with_gpus(ChangedRule(pathspecs, "".join(filters)), script, commands, shell_name)
    return None


def _with_gpus(rule: ChangedRule, script: str, commands: Sequence[Sequence[str]], name: str | None) -> ChangedRule:
    """The rule with how the script finds a file's GPUs: `VAR=$(grep PATTERN FILE | …)`, then perhaps `${VAR:-8}`."""
    pattern, at = next(
        ((word, at) for at, words in enumerate(commands) if words[0] == "grep" for word in words if "NUM_GPUS" in word),
        ("", 0),
    )
    end = next((at for at in range(at, len(commands)) if _CAPTURED.fullmatch(commands[at][0])), None)
    line = _line(pattern)
    if not pattern or end is None or line is None:
        return rule
    variable = commands[end][0].partition("=")[0]
    echoed = [words[1] for words in commands[at:end] if words[0] == "echo" and words[1:2] and words[1].isdecimal()]
    defaults = re.findall(rf"\$\{{{variable}:-([0-9]+)\}}", script)
    default = next((int(number) for number in [*echoed, *defaults]), None)
    # GitHub runs `bash -e`, so a pipeline that ends in a grep without a match ends the script. `shell: bash` also sets
    # pipefail, with which any grep in the pipeline does.
    is_guarded = any("NUM_GPUS" in text and "||" in text for text in script.splitlines())
    decides = name == "bash" or commands[end - 1][0] == "grep"
    is_fatal = decides and not is_guarded and not any(words[0] == "set" for words in commands)
    return ChangedRule(rule.pathspecs, rule.statuses, line, None if is_fatal else default, is_fatal)


def _line(pattern: str) -> re.Pattern[str] | None:
    """grep's pattern as one of Python's; its number is the last that it matches."""
    for theirs, ours in _CLASSES.items():
        pattern = pattern.replace(theirs, ours)
    try:
        return re.compile(pattern, re.ASCII)
    except re.error:
        return None
