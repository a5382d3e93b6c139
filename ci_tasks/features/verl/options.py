"""The options of `verl`, and the command line that starts the same plan again."""

from __future__ import annotations

import shlex

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.features.verl.levels.levels import WRAPPER

_LEVELS = tuple("012345")
_TIMEOUT = "minutes after which the run is ended (else timeout_minutes of the host, else 90 to 720 by the level)"
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
    timeout: float | None = flags.Option(_TIMEOUT, float, metavar="MIN", unit="minutes").field()
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
        "of level 4: regular expression of a line that shows the feature active", "REGEX"
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
    env: tuple[str, ...] = flags.repeatable("a variable for the wrapper", "NAME=VALUE").field()
    override: tuple[str, ...] = flags.repeatable("a setting for Hydra", "KEY=VALUE").field()
    test: tuple[str, ...] = flags.repeatable("a test of Bridge, from its root", "FILE").field()
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
