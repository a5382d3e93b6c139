"""The trainings that a test starts, each with its flags; and what it writes for them to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.recorder.records import LaunchCall, Recording, Value, shell_split
from ci_tasks.features.suites.slime_helpers import commands_of

_SCRIPT = re.compile(r"(?:^|/)train(?:_\w+)?\.py$")
_MODULE = re.compile(r"^[\w.]+\.train(?:_\w+)?$")
_SERVER = re.compile(r"^sglang\.launch_server$|^sglang_router")


@dataclass(frozen=True)
class TrainingLaunch:
    """One start of a training. `flags` are those it is given, the last of several; a value that only a run would know
    stands as ⟨its expression⟩. `call` is the place of its call in the recording."""

    flags: Mapping[str, tuple[str, ...]]
    gpus: int | None
    model_script: str | None
    script: str
    call: int
    entry: str

    def value(self, flag: str, default: str = "") -> str:
        values = self.flags.get(flag)
        return default if values is None else " ".join(values)

    def number(self, flag: str, default: int = 1) -> int:
        """A flag's number; the default too where it is not a number that is known."""
        text = self.value(flag)
        return int(text) if text.isdecimal() else default


@dataclass(frozen=True)
class WrittenConfigs:
    """What the test itself makes for the trainings: configurations as mappings, and servers that it starts."""

    configs: tuple[Mapping[str, Any], ...] = ()
    servers: tuple[Mapping[str, tuple[str, ...]], ...] = field(default=())

    def section(self, name: str) -> list[Any]:
        """The entries of every configuration's `name:`."""
        return [item for config in self.configs for item in config.get(name) or [] if isinstance(item, Mapping)]


def trainings(recording: Recording) -> list[TrainingLaunch]:
    """Every training, in the order in which they would start."""
    return [training for place, call in enumerate(recording.calls) for training in _of(call, place)]


def written(recording: Recording) -> WrittenConfigs:
    texts = [*recording.files.values(), *(value for call in recording.calls for value in call.args)]
    configs: list[Mapping[str, Any]] = []
    for config in (config for value in texts for config in _configs(value)):
        if config not in configs:
            configs.append(config)
    servers = tuple(
        flags_of(argv)
        for call in recording.calls
        for argv in commands_of(call)
        if any(_SERVER.search(argument) for argument in argv)
    )
    return WrittenConfigs(tuple(configs), servers)


def flags_of(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`--flag value …` and `--flag=value` → values by flag; words before the first flag are left out."""
    flags: dict[str, tuple[str, ...]] = {}
    name = ""
    for argument in argv:
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument.partition("=")
            flags[name] = (value,) if equals else ()
        elif name:
            flags[name] = (*flags[name], argument)
    return flags


def _of(call: LaunchCall, place: int) -> Iterator[TrainingLaunch]:
    if call.function == "execute_train":
        yield _from_helper(call, place)
        return
    for argv in commands_of(call):
        for at, argument in enumerate(argv):
            if _SCRIPT.search(argument) or (_MODULE.search(argument) and argv[at - 1] == "-m"):
                flags = flags_of(argv[at + 1 :])
                number = " ".join(flags.get("--num-gpus", ()))
                gpus = int(number) if number.isdecimal() else None
                yield TrainingLaunch(flags, gpus, _sourced(argv), argument, place, call.entry)
                break


def _from_helper(call: LaunchCall, place: int) -> TrainingLaunch:
    kwargs = call.kwargs
    arguments = kwargs.get("train_args")
    if _has_flags(arguments):
        model, script = kwargs.get("megatron_model_type"), kwargs.get("train_script")
        return TrainingLaunch(
            flags=flags_of(_split(arguments)),
            gpus=_count(kwargs.get("num_gpus_per_node")),
            model_script=model if isinstance(model, str) else None,
            script=script if isinstance(script, str) else "train.py",
            call=place,
            entry=call.entry,
        )
    # A helper of another shape: flags are words of their own, the first number is how many GPUs.
    values = (*call.args, *call.kwargs.values())
    argv = [argument for value in values for argument in _split(value)]
    gpus = next((count for value in values if (count := _count(value)) is not None), None)
    return TrainingLaunch(flags_of(argv), gpus, None, "train.py", place, call.entry)


def _has_flags(value: Value) -> bool:
    return any(word.startswith("--") for word in _split(value))


def _split(value: Value) -> list[str]:
    if isinstance(value, str):
        return shell_split(value)
    return [str(item) for item in value] if isinstance(value, list) else []


def _count(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sourced(argv: Sequence[str]) -> str | None:
    """The model script that the same command sources, `scripts/models/NAME.sh`."""
    for argument in argv:
        if match := re.search(r"scripts/models/([^/\s]+)\.sh$", argument):
            return match[1]
    return None


def _configs(value: Value) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if any(name in value for name in ("sglang", "megatron")):
            yield value
    elif isinstance(value, str) and re.search(r"(?m)^(?:sglang|megatron):", value):
        import yaml

        try:
            loaded = yaml.safe_load(value)
        except yaml.YAMLError:
            return
        if isinstance(loaded, Mapping):
            yield loaded
