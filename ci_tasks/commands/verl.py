"""The command `verl`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from invoke.context import Context

from ci_tasks.commands.common import HOST, JSON, command, finish, print_json

if TYPE_CHECKING:
    from ci_tasks.flows.verl import Ask
    from ci_tasks.suites.verl.levels import Wish

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
BRIDGE_ENV, VERL_ENV, IMAGE_ENV = "BRIDGE_REPO", "VERL_REPO", "VERL_IMAGE"
_MODEL = "Qwen/Qwen2.5-0.5B"


@command(
    iterable=["env", "override", "proof", "test"],
    help={
        "level": "0 smoke, 1 save/resume, 2 parallelism, 3 FSDP, 4 a feature, 5 learning signal",
        "bridge": f"the Megatron-Bridge checkout (else {BRIDGE_ENV})",
        "verl": f"the verl checkout (else {VERL_ENV})",
        "host": f"{HOST} (default: local)",
        "image": f"verlai/verl:TAG (else {IMAGE_ENV})",
        "gpus": "how many GPUs the run takes (default: 8)",
        "model-id": f"a small Hugging Face model (default: {_MODEL})",
        "model-path": "its directory on the host",
        "data": "a directory of the host with data and models, seen by the container under the same path",
        "train-files": "parquet file on the host",
        "val-files": "parquet file on the host",
        "reward-model": "its directory on the host",
        "no-reward-model": "rule reward only (a limitation)",
        "dummy-config": "a minimal config.json instead of a checkpoint (a limitation)",
        "enforce-eager": "no CUDA graphs in vLLM (a limitation)",
        "variant": "of level 2: dense, expert, or both with a comma (default: dense)",
        "script": "of level 4: a script of verl's instead of the wrapper",
        "proof": "of level 4: regular expression of a line that shows the feature active; again for more",
        "steps": "of level 5: 20 to 100 (default: 20)",
        "baseline": "of level 5: the log of a known-good run",
        "env": "NAME=VALUE for the wrapper; again for more",
        "override": "KEY=VALUE for Hydra; again for more",
        "test": "a change-specific test of Bridge, from its root; again for more",
        "plan": "write what would run, and stop",
        "markdown": "print the summary as markdown",
        "json": JSON,
        "keep": "where it fails, its container and workspace stay for `shell`",
    },
)
def verl(
    c: Context,
    level: str = "0",
    bridge: str = "",
    verl: str = "",
    host: str = "local",
    image: str = "",
    gpus: str = "8",
    model_id: str = _MODEL,
    model_path: str = "",
    data: str = "",
    train_files: str = "",
    val_files: str = "",
    reward_model: str = "",
    no_reward_model: bool = False,
    dummy_config: str = "",
    enforce_eager: bool = False,
    variant: str = "dense",
    script: str = "",
    proof: list[str] = [],  # noqa: B006 - invoke fills a list of its own
    steps: str = "20",
    baseline: str = "",
    env: list[str] = [],  # noqa: B006
    override: list[str] = [],  # noqa: B006
    test: list[str] = [],  # noqa: B006
    plan: bool = False,
    markdown: bool = False,
    json: bool = False,
    keep: bool = False,
) -> None:
    """Validate a Megatron-Bridge change through verl, level by level.

    invoke verl --level 0 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG
    invoke verl --level 1 --bridge ~/Megatron-Bridge --verl ~/verl --host h100a --image verlai/verl:TAG --plan
    invoke verl --level 5 --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim

    Ends with the summary for the pull request: 0 where the level passed, 1 where it failed, 125 where it is blocked.
    """
    given = dict(locals())

    def flow() -> int:
        from ci_tasks.flows import verl as flows
        from ci_tasks.flows.source import open_config
        from ci_tasks.report.plan import describe

        ask = _ask(given)
        config = open_config()
        if plan:
            plans = flows.plan(ask, config)
            print_json(plans) if json else print("\n".join(describe(plans)))
            return 0
        return flows.run(ask, config, form="json" if json else "markdown" if markdown else "text")

    finish(flow)


Given = Mapping[str, object]


def _ask(given: Given) -> Ask:
    """The flags as an Ask. Raises UsageError."""
    from pathlib import Path

    from ci_tasks.flows.verl import Ask

    bridge, verl = _trees(given)
    image = _text(given, "image") or os.environ.get(IMAGE_ENV, "")
    return Ask(
        wish=_wish(given),
        bridge=Path(bridge),
        verl=Path(verl),
        host=_text(given, "host"),
        command=_again({**given, "bridge": bridge, "verl": verl, "image": image}),
        image=image or None,
        data=_text(given, "data") or None,
        baseline=Path(_text(given, "baseline")).expanduser() if given["baseline"] else None,
        keep=bool(given["keep"]),
    )


def _trees(given: Given) -> tuple[str, str]:
    """Where both checkouts are. Raises UsageError."""
    from pathlib import Path

    from ci_tasks.errors import UsageError

    found = []
    for name, variable in (("bridge", BRIDGE_ENV), ("verl", VERL_ENV)):
        named = _text(given, name) or os.environ.get(variable, "")
        if not named:
            raise UsageError(
                f"verl needs --{name} DIR (or {variable})",
                hint="the sample: --bridge examples/tiny-bridge --verl examples/tiny-verl --host sim",
            )
        found.append(str(Path(named).expanduser().absolute()))
    return found[0], found[1]


def _wish(given: Given) -> Wish:
    from ci_tasks.suites.verl.levels import Wish

    return Wish(
        level=_number(given, "level"),
        variants=tuple(part.strip() for part in _text(given, "variant").split(",") if part.strip()),
        model_id=_text(given, "model_id"),
        model_path=_text(given, "model_path"),
        train_files=_text(given, "train_files"),
        val_files=_text(given, "val_files"),
        reward_model=_text(given, "reward_model"),
        no_reward_model=bool(given["no_reward_model"]),
        dummy_config=_text(given, "dummy_config"),
        enforce_eager=bool(given["enforce_eager"]),
        steps=_number(given, "steps"),
        script=_text(given, "script"),
        proofs=_several(given, "proof"),
        bridge_tests=_several(given, "test"),
        env=_environment(given),
        overrides=_several(given, "override"),
        gpus=_number(given, "gpus"),
    )


def _environment(given: Given) -> dict[str, str]:
    """The variables of --env. Raises UsageError for one that is none, or is a secret."""
    from ci_tasks.errors import UsageError

    pairs = [one.partition("=") for one in _several(given, "env")]
    if wrong := [name for name, equals, _ in pairs if not equals or not name.isidentifier()]:
        raise UsageError(f"--env takes NAME=VALUE, not {wrong[0]!r}")
    if secret := [name for name, _, _ in pairs if _SECRET.search(name)]:
        raise UsageError(
            f"--env {secret[0]} would put a secret into the log and the summary",
            hint="name it under `secrets:` of the host in hosts.yaml; its value comes from your environment",
        )
    return {name: value for name, _, value in pairs}


def _text(given: Given, name: str) -> str:
    return str(given[name] or "")


def _number(given: Given, name: str) -> int:
    from ci_tasks.errors import UsageError

    if not _text(given, name).isdecimal():
        raise UsageError(f"--{name} is a number, not {_text(given, name)!r}")
    return int(_text(given, name))


def _several(given: Given, name: str) -> tuple[str, ...]:
    values = given[name]
    return tuple(map(str, values)) if isinstance(values, list) else ()


_SAID_ANYWAY = ("level", "bridge", "verl", "host")
_NOT_AGAIN = ("c", "plan", "markdown", "json", "keep")
_DEFAULTS = {"gpus": "8", "model_id": _MODEL, "variant": "dense", "steps": "20"}


def _again(given: Given) -> str:
    """The command that starts the same plan, for a shell."""
    words = ["ci-tasks", "verl"]
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if name in _NOT_AGAIN or not value or (value == _DEFAULTS.get(name) and name not in _SAID_ANYWAY):
            continue
        if isinstance(value, list):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)
