"""The command `verl`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.output import for_programs, print_json, print_record
from ci_tasks.errors import UsageError
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.features.verl.levels.levels import LevelRequest
    from ci_tasks.features.verl.run_levels import VerlRequest

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_SAMPLE = "the sample: --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim"


def levels(_given: Mapping[str, str], _typed: str) -> Iterable[str]:
    return "012345"


@dataclass(frozen=True)
class VerlOptions:
    level: int = flags.number(
        "0 smoke, 1 save/resume, 2 parallelism, 3 FSDP, 4 a feature, 5 learning signal (default: 0)",
        "",
        default=0,
        minimum=0,
        hint="--level 0 to 5",
        complete="ci_tasks.features.verl.command:levels",
    ).field()
    bridge: str = flags.text(
        "the Megatron-Bridge checkout (else BRIDGE_REPO)",
        "DIR",
        required=True,
        environment="BRIDGE_REPO",
        hint=_SAMPLE,
    ).field()
    verl: str = flags.text(
        "the verl checkout (else VERL_REPO)", "DIR", required=True, environment="VERL_REPO", hint=_SAMPLE
    ).field()
    host: str = flags.HOST.field(
        help="a host or a pool of hosts.yaml; several with commas: the first with free GPUs", default="local"
    )
    image: str | None = flags.text("verlai/verl:TAG (else VERL_IMAGE)", "IMAGE", environment="VERL_IMAGE").field()
    gpus: int = flags.number("number of GPUs that the run takes, on each of its nodes", "GPUs", default=8).field()
    nodes: int = flags.NODES.field(help="number of Slurm nodes, with --gpus on each of them", default=1)
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
        "a minimal config.json instead of a checkpoint (a limitation)", "FILE"
    ).field()
    enforce_eager: bool = flags.switch("no CUDA graphs in vLLM (a limitation)").field()
    variant: str = flags.text(
        "of level 2: dense, expert, or both with a comma",
        "VARIANT",
        default="dense",
        choices=("dense", "expert"),
        commas=True,
    ).field()
    script: str | None = flags.text("of level 4: a script of verl's instead of the wrapper", "FILE").field()
    proof: tuple[str, ...] = flags.repeatable(
        "of level 4: regular expression of a line that shows the feature active; may be repeated", "REGEX"
    ).field()
    steps: int = flags.number("of level 5: 20 to 100", "steps", default=20, hint="for example --steps 40").field()
    baseline: str | None = flags.text("of level 5: the log of a known-good run", "FILE").field()
    base: str | None = flags.text(
        "train this Bridge too, a revision of --bridge or another checkout, and compare both",
        "REV|DIR",
        excludes=(
            ("plan", "plan the level without --base: both sides run it", ""),
            ("detach", "the client decides after each pair whether another one is needed", "use tmux or nohup"),
            ("baseline", "--base trains the baseline", ""),
            ("markdown", "a comparison is text, JSON or a page", ""),
        ),
    ).field()
    repeat: int | None = flags.REPEAT.field(
        help="with --base: most trainings of each side (else 5 at level 5, 1 below)", needs="base"
    )
    margin: float = flags.Option(
        "with --base: the drop of the mean reward that a Pass rules out", float, 0.05, metavar="REWARD", unit="reward"
    ).field()
    env: tuple[str, ...] = flags.repeatable("a variable for the wrapper; may be repeated", "NAME=VALUE").field()
    override: tuple[str, ...] = flags.repeatable("a setting for Hydra; may be repeated", "KEY=VALUE").field()
    test: tuple[str, ...] = flags.repeatable("a test of Bridge, from its root; may be repeated", "FILE").field()
    with_: tuple[str, ...] = flags.WITH.field(
        last=False,
        excludes=(("base", "an overlay may change between the trainings that are compared", "leave one of them out"),),
    )
    build: tuple[str, ...] = flags.BUILD.field(last=False)
    plan: bool = flags.switch("write what would run, print every training, and stop").field()
    detach: bool = flags.DETACH.field(
        help="start the run and return at once; `attach` ends with the summary",
        excludes=(("plan", "--plan starts nothing", ""),),
    )
    markdown: bool = flags.switch("print the summary as markdown").field()
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()
    keep: bool = flags.KEEP.field(help="keep the container and the workspace of a run that fails, for `shell`")


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
    from ci_tasks.features.verl import report, run_levels
    from ci_tasks.records import BatchResult
    from ci_tasks.report import lists
    from ci_tasks.run.hosts_files import open_config

    request = _request_of(options)
    config = open_config(request.bridge, request.verl)
    if options.plan:
        plans, entries, overview = run_levels.plan(request, config)
        lines = [*lists.plans(plans), "", *overview]
        print_json([encode(entry) for entry in entries]) if options.json else print("\n".join(lines))
        return 0
    if options.base:
        return _compare(options, request, config)
    with for_programs(as_json=options.json, events=options.events) as events:
        code, result = run_levels.run(request, config, markdown=options.markdown, events=events)
        if events:
            events.exit_code = code
    if options.json and result is not None:
        print_json(encode(result) if isinstance(result, BatchResult) else report.public(result))
    return code


def _compare(options: VerlOptions, request: VerlRequest, config: Config) -> int:
    from ci_tasks.features.verl.comparison.compare_levels import ComparisonRequest, compare

    asked = ComparisonRequest(request, options.base or "", options.repeat, options.margin)
    with for_programs(as_json=options.json, events=options.events) as events:
        code, result = compare(asked, config, events=events)
        if events:
            events.exit_code = code
    if result is not None:
        print_record(result, as_json=options.json)
    return code


def _request_of(options: VerlOptions) -> VerlRequest:
    from ci_tasks.cli.given_options import overlay_sources
    from ci_tasks.features.verl.run_levels import VerlRequest

    overlays = overlay_sources(options.with_, options.build)
    with_ = tuple(f"{overlay.name}={overlay.path}" for overlay in overlays)
    bridge, verl = (user_path(tree).absolute() for tree in (options.bridge, options.verl))
    return VerlRequest(
        request=_level_request(options),
        bridge=bridge,
        verl=verl,
        host=options.host,
        command=command_line(replace(options, bridge=str(bridge), verl=str(verl), with_=with_)),
        image=options.image,
        data=options.data,
        baseline=user_path(options.baseline) if options.baseline else None,
        keep=options.keep,
        detach=options.detach,
        minutes=options.timeout,
        overlays=overlays,
    )


def _level_request(options: VerlOptions) -> LevelRequest:
    from ci_tasks.features.verl.levels.levels import LevelRequest

    return LevelRequest(
        level=options.level,
        variants=tuple(part.strip() for part in options.variant.split(",") if part.strip()),
        model_id=options.model_id,
        model_path=options.model_path or "",
        train_files=options.train_files or "",
        val_files=options.val_files or "",
        reward_model=options.reward_model or "",
        no_reward_model=options.no_reward_model,
        dummy_config=options.dummy_config or "",
        enforce_eager=options.enforce_eager,
        steps=options.steps,
        script=options.script or "",
        proofs=options.proof,
        bridge_tests=options.test,
        env=_environment(options.env),
        overrides=options.override,
        gpus=options.gpus,
        nodes=options.nodes,
    )


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


_ALWAYS_SHOWN = ("level", "bridge", "verl", "host")
_NOT_SHOWN = ("plan", "markdown", "json", "events", "keep", "detach")


def command_line(options: VerlOptions) -> str:
    """The command that starts the same plan, for a shell."""
    argv = ["ci-tasks", "verl"]
    for name, option in flags.options_of(VerlOptions).items():
        value = getattr(options, name)
        if name not in _NOT_SHOWN and (value != option.default or name in _ALWAYS_SHOWN):
            argv += _option_argv(flags.flag_of(name, option), option, value)
    return shlex.join(argv)


def _option_argv(flag: str, option: flags.Option, value: object) -> list[str]:
    if option.kind is bool:
        return [flag]
    values = value if isinstance(value, tuple) else (value,)
    return [word for item in values for word in (flag, f"{item:g}" if isinstance(item, float) else str(item))]
