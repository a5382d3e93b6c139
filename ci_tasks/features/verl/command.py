"""The command `verl` and its options."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.output import for_programs, print_json
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.verl.levels.levels import WRAPPER, LevelRequest
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_LEVELS = tuple("012345")
_NOT_SHOWN = ("plan", "json", "events", "keep", "detach")


@dataclass(frozen=True)
class VerlOptions:
    level: str = flags.text(
        "0 smoke, 1 save/resume, 2 parallelism, 3 FSDP, 4 a feature, 5 learning signal",
        "N",
        default="0",
        choices=_LEVELS,
    ).field()
    bridge: str = flags.text("the Megatron-Bridge checkout", "DIR", environment="BRIDGE_REPO").field(default="")
    verl: str = flags.text("the verl checkout", "DIR", environment="VERL_REPO").field(default="")
    host: str = flags.HOST.field(
        help="a host or a pool of hosts.yaml; several with commas: the first with free GPUs", default="local"
    )
    image: str | None = flags.text("verlai/verl:TAG (else VERL_IMAGE)", "IMAGE", environment="VERL_IMAGE").field()
    gpus: int = flags.number("number of GPUs that the run takes", "GPUs", default=8).field()
    timeout: float | None = flags.TIMEOUT.field(
        help="minutes after which the run is ended (else timeout_minutes of the host, else 90 to 720 by the level)"
    )
    model_id: str = flags.text("a small Hugging Face model", "ID", default="Qwen/Qwen2.5-0.5B").field()
    model_path: str | None = flags.text("the model's directory on the host", "DIR").field()
    data: str | None = flags.text(
        "a directory of the host with data and models, mounted into the container under the same path", "DIR"
    ).field()
    train_files: str | None = flags.text("parquet file on the host", "FILE").field()
    val_files: str | None = flags.text("parquet file on the host", "FILE").field()
    reward_model: str | None = flags.text("the reward model's directory on the host", "DIR").field()
    no_reward_model: bool = flags.switch("rule reward only (a limitation)").field()
    dummy_config: str | None = flags.text(
        "a minimal config.json on the host instead of a checkpoint (a limitation); the tokenizer is --model-path's",
        "FILE",
        needs="model_path",
    ).field()
    variant: str = flags.text(
        "of level 2: dense, expert, or both with a comma",
        "VARIANT",
        default="dense",
        choices=("dense", "expert"),
        commas=True,
    ).field()
    exact: bool = flags.switch("of level 1: also both steps without a resume, and compare their checkpoints").field()
    script: str | None = flags.text("of level 4: a script of verl's instead of the wrapper", "FILE").field()
    wrapper: str = flags.text("verl's wrapper, from its root", "FILE", default=WRAPPER).field()
    proof: tuple[str, ...] = flags.repeatable(
        "of level 4: regular expression of a line that shows the feature active; may be repeated", "REGEX"
    ).field()
    steps: int = flags.number("of level 5: 20 to 100", "steps", default=20, hint="for example --steps 40").field()
    baseline: str | None = flags.text("of level 5: the log of a known-good run", "FILE").field()
    log: str | None = flags.text(
        "judge this log of a level that ran elsewhere, and run nothing",
        "FILE",
        excludes=tuple((name, "--log runs nothing", "") for name in ("plan", "detach", "base")),
    ).field()
    base: str | None = flags.text(
        "train this Bridge too, a revision of --bridge or another checkout, and compare both",
        "REV|DIR",
        excludes=(
            ("plan", "plan the level without --base: both sides run it", ""),
            ("detach", "the client decides after each pair whether another one is needed", "use tmux or nohup"),
            ("baseline", "--base trains the baseline", ""),
        ),
    ).field()
    repeat: int = flags.REPEAT.field(help="with --base: most trainings of each side", needs="base", default=5)
    env: tuple[str, ...] = flags.repeatable("a variable for the wrapper; may be repeated", "NAME=VALUE").field()
    override: tuple[str, ...] = flags.repeatable("a setting for Hydra; may be repeated", "KEY=VALUE").field()
    test: tuple[str, ...] = flags.repeatable("a test of Bridge, from its root; may be repeated", "FILE").field()
    checks_from: str | None = flags.text(
        "cite focused Bridge checks that ran elsewhere: pytest's last line, or a log that ends with it",
        "TEXT|FILE",
        excludes=(("test", "--checks-from runs no test", ""),),
    ).field()
    plan: bool = flags.switch("write what would run, print every training, and stop").field()
    detach: bool = flags.DETACH.field(
        help="start the run and return at once; `attach` ends with the summary",
        excludes=(("plan", "--plan starts nothing", ""),),
    )
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()
    keep: bool = flags.KEEP.field(help="keep the container and the workspace of a run that fails, for `shell`")

    @property
    def command_line(self) -> str:
        """The command that starts the same plan, for a shell."""
        argv = ["ci-tasks", "verl"]
        for name, option in flags.options_of(VerlOptions).items():
            value, flag = getattr(self, name), flags.flag_of(name, option)
            is_needed = name in ("level", "bridge", "verl", "host") and not self.log
            if name not in _NOT_SHOWN and (is_needed or value != option.default):
                values = value if isinstance(value, tuple) else (value,)
                argv += [flag] if option.kind is bool else [word for each in values for word in (flag, str(each))]
        return shlex.join(argv)


def verl(options: VerlOptions) -> int:
    """
    ci-tasks verl --level 0 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG --plan
    ci-tasks verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a,h100b --image IMAGE --timeout 60
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --detach
    ci-tasks verl --level 5 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image IMAGE --base main --repeat 5
    ci-tasks verl --level 5 --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim --no-reward-model

    Prints the summary for the pull request. Exit code 0 if the level passed, 1 if it failed, 4 if it is not proven,
    125 if it is blocked.
    """
    from ci_tasks.agent.codec import encode

    request = level_request(options)
    if not (options.log or (options.bridge and options.verl)):
        raise UsageError(
            "verl needs --bridge DIR and --verl DIR (or BRIDGE_REPO and VERL_REPO)",
            hint="the sample: --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim",
        )
    with for_programs(as_json=options.json, events=options.events) as events:
        code, result = _performed(_resolved(options), request, events)
        if events:
            events.exit_code = code
    if options.json and result is not None:
        print_json([encode(one) for one in result] if isinstance(result, list) else encode(result))
    return code


def _performed(options: VerlOptions, request: LevelRequest, events: EventStream | None) -> tuple[int, Any]:
    """The exit code, and what --json prints of it."""
    from ci_tasks.features.verl import comparison, level_run
    from ci_tasks.features.verl.judge.records import RESULT_CODES
    from ci_tasks.features.verl.judge.summary import text
    from ci_tasks.run.hosts_files import open_config

    baseline = Path(options.baseline) if options.baseline else None
    if options.log:
        summary = level_run.judge_log(user_path(options.log), request, options.command_line, baseline)
        print("\n".join(text(summary)))
        return RESULT_CODES[summary.result], summary
    if baseline:
        level_run.read_baseline(baseline)
    config = open_config(Path(options.bridge), Path(options.verl))
    if options.base:
        return comparison.compare(options, request, config, events=events)
    with level_run.trees_under_test(options, request, config) as trees:
        return (0, level_run.plan(trees)) if options.plan else level_run.run(trees, events=events)


def _resolved(options: VerlOptions) -> VerlOptions:
    """With whole paths, so that its command line starts the same plan from any directory."""
    named = {name: getattr(options, name) for name in ("bridge", "verl", "baseline")}
    whole: dict[str, Any] = {name: str(user_path(path).absolute()) for name, path in named.items() if path}
    return replace(options, **whole)


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
    if not re.search(r"\d+ passed", last):
        raise UsageError(f"--checks-from cites no passed test: {last[:200]!r}", hint='for example "12 passed in 3s"')
    return f"{last} ({file})" if file.is_file() else last


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """The variables of --env. Raises UsageError for one that is none, or is a secret."""
    found = {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}
    for pair in pairs:
        name = pair.partition("=")[0]
        if name not in found or not name.isidentifier():
            raise UsageError(f"--env takes NAME=VALUE, not {name!r}")
        if _SECRET.search(name):
            raise UsageError(
                f"--env {name} would put a secret into the log and the summary",
                hint="name it under `secrets:` of the host in hosts.yaml; its value comes from your environment",
            )
    return found
