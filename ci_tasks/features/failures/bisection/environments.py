"""What differs between two environments, each of a run or of a file: variables, without those that may be secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.features.failures.bisection.axis import Change
from ci_tasks.known_secrets import is_private
from ci_tasks.resources import user_path
from ci_tasks.results import store
from ci_tasks.results.read_record import load_record

_VARIABLE = re.compile(r"(?:export )?([A-Za-z_]\w*)=(.*)")
# What a machine or a run has of its own, and what would change how the run itself works.
_OWN = re.compile(
    r"(?:CI_TASKS_|GITHUB_|RUNNER_|SSH_|XDG_|DBUS_|SLURM_|BASH|PS\d$|LESS)\w*"
    r"|CI|_|\w*HOME|HOSTNAME|LOGNAME|LS_COLORS|MAIL|OLDPWD|PATH|PWD|PYTEST_ADDOPTS|SHELL|SHLVL|TERM|TMPDIR|USER|VIRTUAL_ENV"
)
_UNUSABLE = re.compile(r"[\x00-\x08\x0e-\x1f]|\$\{\{")  # nothing that a workflow could say of a value


@dataclass(frozen=True)
class ChangedEnvironment:
    """`left_out` are names that differ and are not searched, by the reason."""

    changes: tuple[Change, ...]
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def changed_variables(good: str, bad: str, label: str, row: str) -> ChangedEnvironment:
    """Those of which a value differs. `good` and `bad` are runs of the row, or files. Raises UsageError."""
    old, new = (_variables(name, option, label, row) for option, name in (("--good", good), ("--bad", bad)))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    secret = tuple(name for name in names if any(is_private(name, side.get(name) or "") for side in (old, new)))
    own = tuple(name for name in names if name not in secret and _is_own(name, old, new))
    changes = [Change(name, old.get(name), new.get(name)) for name in names if name not in secret and name not in own]
    left_out = {"they may be secrets": secret, "a machine or a run has its own": own}
    return checked(ChangedEnvironment(tuple(changes), left_out), "variable", good, bad)


def checked(found: ChangedEnvironment, what: str, good: str, bad: str) -> ChangedEnvironment:
    """Raises UsageError where there is nothing to search."""
    if found.changes:
        return found
    reasons = [f"{', '.join(names)}, since {why}" for why, names in found.left_out.items() if names]
    others = f" that can be searched; not searched: {'; '.join(reasons)}" if reasons else ""
    raise UsageError(f"no {what} differs between {good} and {bad}{others}", hint="`ci-tasks diff` shows what does")


def run_named(name: str, option: str, label: str, row: str) -> RunDir:
    """The run of the row that `name` means. Raises UsageError."""
    try:
        runs = store.find(name)
    except UnknownName as error:
        raise UsageError(f"{option} {name} is neither a file nor a run", hint=error.hint) from None
    for _, run in runs:
        record = load_record(run)
        if (record.label, record.row) == (label, row) or len(runs) == 1:
            return run
    raise UsageError(
        f"{option} {name} has no run of row {row} of label {label}", hint=f"its runs: {', '.join(id for id, _ in runs)}"
    )


def read_variables(text: str) -> dict[str, str]:
    """What `env` prints: a line that begins no variable goes on with the value before it."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if started := _VARIABLE.fullmatch(line):
            name = started[1]
            found[name] = started[2]
        elif name and line and not line.startswith("#"):
            found[name] += f"\n{line}"
    return found


def _variables(name: str, option: str, label: str, row: str) -> Mapping[str, str]:
    file = user_path(name)
    if file.is_file():
        found = read_variables(file.read_text(encoding="utf-8", errors="replace"))
        if not found:
            raise UsageError(f"{option} {name} has no line NAME=VALUE", hint="such as the output of `env`")
        return found
    try:
        plan = read_plan(run_named(name, option, label, row))
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {name}: its plan cannot be read: {error}", hint="name a file NAME=VALUE") from None
    checkout = plan.checkout
    of_run = [text for text in (plan.id, plan.workspace, checkout.commit, checkout.head) if text]
    variables = {**plan.env, **plan.host_env}
    return {name: value for name, value in variables.items() if not any(text in value for text in of_run)}


def _is_own(name: str, *sides: Mapping[str, str]) -> bool:
    return _OWN.fullmatch(name) is not None or any(_UNUSABLE.search(side.get(name, "")) for side in sides)
