"""The command `verl`."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.cli.output import for_programs, print_json
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.features.verl.levels.levels import LevelRequest

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)


def verl(options: VerlOptions) -> int:
    """
    ci-tasks verl --level 0 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG --plan
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a,h100b --image IMAGE --timeout 60
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --detach
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --base main --repeat 5
    ci-tasks verl --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --with megatron-core=~/Megatron-LM
    ci-tasks verl --level 5 --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim --no-reward-model

    Prints the summary for the pull request. Exit code 0 if the level passed, 1 if it failed, 4 if it is not proven,
    125 if it is blocked.
    """
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.verl import comparison, report, run_levels
    from ci_tasks.features.verl.levels.summary import Summary
    from ci_tasks.run.hosts_files import open_config

    request = level_request(options)
    if options.log:
        return _judge_log(options, request)
    if not (options.bridge and options.verl):
        raise UsageError(
            "verl needs --bridge DIR and --verl DIR (or BRIDGE_REPO and VERL_REPO)",
            hint="the sample: --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim",
        )
    options = _resolved(options)
    config = open_config(Path(options.bridge), Path(options.verl))
    if options.plan:
        return run_levels.plan(options, request, config)
    story = comparison.compare if options.base else run_levels.run
    with for_programs(as_json=options.json, events=options.events) as events:
        code, result = story(options, request, config, events=events)
        if events:
            events.exit_code = code
    if options.json and result is not None:
        print_json(report.public(result) if isinstance(result, Summary) else encode(result))
    return code


def _judge_log(options: VerlOptions, request: LevelRequest) -> int:
    from ci_tasks.features.verl import report, run_summary

    baseline = user_path(options.baseline) if options.baseline else None
    log, command = user_path(options.log or ""), options.command_line
    summary = run_summary.judge_log(log, request, command=command, baseline=baseline)
    if options.json:
        print_json(report.public(summary))
    else:
        print(report.markdown(summary) if options.markdown else "\n".join(report.text(summary)))
    return run_summary.RESULT_CODES[summary.result]


def _resolved(options: VerlOptions) -> VerlOptions:
    """With whole paths, so that its command line starts the same plan from any directory."""
    from ci_tasks.cli.given_options import overlay_sources

    overlays = overlay_sources(options.with_)
    return replace(
        options,
        bridge=str(user_path(options.bridge).absolute()),
        verl=str(user_path(options.verl).absolute()),
        baseline=str(user_path(options.baseline)) if options.baseline else None,
        with_=tuple(f"{overlay.name}={overlay.path}" for overlay in overlays),
    )


def level_request(options: VerlOptions) -> LevelRequest:
    """What the options ask of a level. Raises UsageError."""
    from ci_tasks.features.verl.levels.levels import LevelRequest

    same = {field.name: value for field in fields(LevelRequest) if (value := getattr(options, field.name, None))}
    more = {
        "level": options.level,
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
    lines = file.read_text("utf-8", "replace").split("\n") if "\n" not in text and file.is_file() else [text]
    last = printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))
    if not re.search(r"\d+ passed", last):
        raise UsageError(f"--checks-from cites no passed test: {last[:200]!r}", hint='for example "12 passed in 3s"')
    return f"{last[:300]} ({file})" if file.is_file() else last[:300]


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """The variables of --env. Raises UsageError for one that is none, or is a secret."""
    assignments = [pair.partition("=") for pair in pairs]
    if wrong := [name for name, equals, _ in assignments if not equals or not name.isidentifier()]:
        raise UsageError(f"--env takes NAME=VALUE, not {wrong[0]!r}")
    if secret := [name for name, _, _ in assignments if _SECRET.search(name)]:
        raise UsageError(
            f"--env {secret[0]} would put a secret into the log and the summary",
            hint="name it under `secrets:` of the host in hosts.yaml; its value comes from your environment",
        )
    return {name: value for name, _, value in assignments}
