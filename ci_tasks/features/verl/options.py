"""The options of `verl`, and the command line that starts the same plan again."""

from __future__ import annotations

import shlex

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.features.verl.levels.levels import WRAPPER

_LEVEL = "0 smoke, 1 save/resume, 2 parallelism, 3 FSDP, 4 a feature, 5 learning signal"
_HOST = "a host or a pool of hosts.yaml; several with commas: the first with free GPUs"
_TIMEOUT = "end the run after this many minutes (default: timeout_minutes of the host, or 90 to 720 by level)"
_DUMMY = "a minimal config.json on the host instead of a checkpoint (a limitation), with the tokenizer of --model-path"
_BASE = "also train this revision of --bridge, or this other checkout, and compare both"
_CHECKS = "cite focused Bridge checks that ran elsewhere: pytest's last line, or a log that ends with it"
_VARIANT = "level 2: dense, expert, or both with a comma"
_NOT_SHOWN = ("plan", "json", "events", "keep", "detach")


@dataclass(frozen=True)
class VerlOptions:
    level: str = flags.text(_LEVEL, "N", default="0", choices=tuple("012345")).field()
    bridge: str = flags.text("the Megatron-Bridge checkout", "DIR", environment="BRIDGE_REPO").field(default="")
    verl: str = flags.text("the verl checkout", "DIR", environment="VERL_REPO").field(default="")
    host: str = flags.HOST.field(help=_HOST, default="local")
    image: str | None = flags.text("verlai/verl:TAG (default: VERL_IMAGE)", "IMAGE", environment="VERL_IMAGE").field()
    gpus: int = flags.number("number of GPUs", "GPUs", default=8).field()
    timeout: float | None = flags.Option(_TIMEOUT, float, metavar="MIN", unit="minutes").field()
    model_id: str = flags.text("a small Hugging Face model", "ID", default="Qwen/Qwen2.5-0.5B").field()
    model_path: str | None = flags.text("the model's directory on the host", "DIR").field()
    data: str | None = flags.text("a directory of the host to mount into the container at the same path", "DIR").field()
    train_files: str | None = flags.text("a parquet file on the host", "FILE").field()
    val_files: str | None = flags.text("a parquet file on the host", "FILE").field()
    reward_model: str | None = flags.text("the reward model's directory on the host", "DIR").field()
    no_reward_model: bool = flags.switch("use the rule reward only (a limitation)").field()
    dummy_config: str | None = flags.text(_DUMMY, "FILE", needs="model_path").field()
    variant: str = flags.text(_VARIANT, "VARIANT", default="dense", choices=("dense", "expert"), commas=True).field()
    exact: bool = flags.switch("level 1: also run both steps without a resume, and compare the checkpoints").field()
    script: str | None = flags.text("level 4: a script of verl to run instead of the wrapper", "FILE").field()
    wrapper: str = flags.text("verl's wrapper, from its root", "FILE", default=WRAPPER).field()
    proof: tuple[str, ...] = flags.repeatable("level 4: a log line that shows the feature active", "REGEX").field()
    steps: int = flags.number("level 5: 20 to 100 steps", "steps", default=20, hint="for example --steps 40").field()
    baseline: str | None = flags.text("level 5: the log of a known-good run", "FILE").field()
    log: str | None = flags.text("judge this log, and run nothing", "FILE").field(excludes=("plan", "detach", "base"))
    base: str | None = flags.text(_BASE, "REV|DIR").field(excludes=("plan", "detach", "baseline"))
    repeat: int = flags.REPEAT.field(help="with --base: maximum of trainings per side", needs="base", default=5)
    env: tuple[str, ...] = flags.repeatable("an environment variable for the wrapper", "NAME=VALUE").field()
    override: tuple[str, ...] = flags.repeatable("a setting for Hydra", "KEY=VALUE").field()
    test: tuple[str, ...] = flags.repeatable("a test of Bridge, from its root", "FILE").field()
    checks_from: str | None = flags.text(_CHECKS, "TEXT|FILE", excludes=("test",)).field()
    plan: bool = flags.switch("write the run directories, print every training, and run nothing").field()
    detach: bool = flags.DETACH.field(help="start the run; `attach` ends with the summary", excludes=("plan",))
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()
    keep: bool = flags.KEEP.field(help="keep the container and workspace of a failed run, for `shell`")

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
