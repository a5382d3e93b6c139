"""The command `verl`."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.cli.shared import perform
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.resources import path, user_path

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)


def verl(options: VerlOptions) -> int:
    """
    ci-tasks verl --level 0 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG --plan
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a,h100b --image IMAGE --timeout 60
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --detach
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --base main --repeat 5
    cd examples; ci-tasks verl --bridge tiny-bridge --verl tiny-verl --host sim --no-reward-model --env VERL_USE_UV=0

    Prints the summary for the pull request. Exit code 0 if the level passed, 1 if it failed, 4 if it is not proven,
    125 if it is blocked.
    """
    request = level_request(options)
    if not (options.log or (options.bridge and options.verl)):
        bridge, verl = (shlex.quote(str(path(f"examples/tiny-{name}"))) for name in ("bridge", "verl"))
        more = "--host sim --no-reward-model --env VERL_USE_UV=0"
        hint = f"the sample: ci-tasks verl --bridge {bridge} --verl {verl} {more}"
        raise UsageError("verl needs --bridge DIR and --verl DIR (or BRIDGE_REPO and VERL_REPO)", hint=hint)
    # With whole paths, so that its command line starts the same plan from any directory.
    named = {name: getattr(options, name) for name in ("bridge", "verl", "baseline")}
    whole: dict[str, Any] = {name: str(user_path(place).absolute()) for name, place in named.items() if place}
    return perform(lambda events: _performed(replace(options, **whole), request, events), options)


def _performed(options: VerlOptions, request: LevelRequest, events: EventStream | None) -> tuple[int, Any]:
    """The exit code, and what --json prints of it."""
    from ci_tasks.features.verl import level_run
    from ci_tasks.features.verl.judge.records import RESULT_CODES
    from ci_tasks.features.verl.judge.verdict import text
    from ci_tasks.run.hosts_files import open_config

    level_run.read_baseline(options.baseline or "")
    if options.log:
        summary = level_run.judge_log(user_path(options.log), request, options.command_line, options.baseline or "")
        print("\n".join(text(summary)))
        return RESULT_CODES[summary.result], summary
    config = open_config(Path(options.bridge), Path(options.verl))
    if options.base:
        return level_run.compare(options, request, config, events=events)
    with level_run.trees_under_test(options, request, config) as trees:
        return (0, level_run.plan(trees)) if options.plan else level_run.run(trees, events=events)


def level_request(options: VerlOptions) -> LevelRequest:
    """What the options ask of a level. Raises UsageError."""
    same = {field.name: value for field in fields(LevelRequest) if (value := getattr(options, field.name, None))}
    more: dict[str, Any] = {
        "level": int(options.level),
        "variants": tuple(part.strip() for part in options.variant.split(",") if part.strip()),
        "proofs": options.proof,
        "bridge_tests": options.test,
        "checks": _cited(options.checks_from),
        "env": _environment(options.env),
        "overrides": options.override,
    }
    return LevelRequest(**{**same, **more})


def _cited(text: str | None) -> str:
    """The line that --checks-from gives, or the last one of its file. Raises UsageError for one that cites no test."""
    if not text:
        return ""
    file = user_path(text)
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else [text]
    last = printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))[:300]
    if not re.search(r"\d+ passed", last) or re.search(r"[1-9]\d* (?:failed|errors?)\b", last):
        raise UsageError(f"--checks-from cites no passed checks: {last[:200]!r}", hint='for example "12 passed in 3s"')
    return f"{last} ({file})" if file.is_file() else last


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """The variables of --env. Raises UsageError for one that is none, or is a secret."""
    found = {}
    for name, equals, value in (pair.partition("=") for pair in pairs):
        if not equals or not name.isidentifier():
            raise UsageError(f"--env takes NAME=VALUE, not {name!r}")
        if _SECRET.search(name):
            hint = "name it under `secrets:` of the host in hosts.yaml; its value comes from your environment"
            raise UsageError(f"--env {name} would put a secret into the log and the summary", hint=hint)
        found[name] = value
    return found
