"""The trainings that a test starts, each with its flags; and what it writes for them to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.recorder.records import UNKNOWN, LaunchCall, Recording, Value, shell_split
from ci_tasks.features.suites.slime_helpers import commands_of

Flags = Mapping[str, tuple[str, ...]]
_SCRIPT = re.compile(r"(?:^|/)train(?:_\w+)?\.py$")
_MODULE = re.compile(r"^[\w.]+\.train(?:_\w+)?$")
_SERVER = re.compile(r"^sglang\.launch_server$|^sglang_router")
_MODEL = re.compile(r"scripts/models/([^/\s]+)\.sh$")
_CONFIG = re.compile(r"(?m)^(?:sglang|megatron):")


@dataclass(frozen=True)
class TrainingLaunch:
    """One start of a training. `flags` are those it is given, the last of several; a value that only a run would know
    stands as ⟨its expression⟩. `call` is the place of its call in the recording."""

    flags: Flags
    gpus: Value
    model_script: Value
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

    @property
    def hidden(self) -> bool:
        """Whether arguments that are not known may be flags: they are not the value of one."""
        return any(map(UNKNOWN.fullmatch, self.flags.get("", ())))


@dataclass(frozen=True)
class WrittenConfigs:
    """What the test itself makes for the trainings: configurations as mappings, and the flags of servers it starts."""

    configs: tuple[Mapping[str, Any], ...] = ()
    servers: tuple[Flags, ...] = ()

    def section(self, name: str) -> list[Mapping[str, Any]]:
        """The entries of every configuration's `name:`."""
        return [item for config in self.configs for item in config.get(name) or [] if isinstance(item, Mapping)]

    @property
    def groups(self) -> list[Mapping[str, Any]]:
        """The groups of engines of every SGLang model."""
        groups = [group for model in self.section("sglang") for group in model.get("server_groups") or []]
        return [group for group in groups if isinstance(group, Mapping)]


def trainings(recording: Recording) -> list[TrainingLaunch]:
    """Every training, in the order in which they would start."""
    return [training for at, call in enumerate(recording.calls) for training in _of(call, at)]


def written(recording: Recording) -> WrittenConfigs:
    texts = [*recording.files.values(), *(value for call in recording.calls for value in call.args)]
    configs = [config for value in texts for config in _configs(value)]
    commands = [argv for call in recording.calls for argv in commands_of(call)]
    servers = tuple(_flags_of(argv) for argv in commands if any(map(_SERVER.search, argv)))
    return WrittenConfigs(tuple(configs), servers)


def _of(call: LaunchCall, at: int) -> Iterator[TrainingLaunch]:
    if call.function == "execute_train":
        named, words = call.kwargs, _words(call.kwargs.get("train_args"))
        if not any(word.startswith("--") for word in words):
            # A helper of another shape: its flags are words of their own, and its first number counts GPUs.
            given = (*named.values(), *call.args)
            words = [word for value in given for word in _words(value)]
            named = {"num_gpus_per_node": next((value for value in given if type(value) is int), None)}
        gpus, model = named.get("num_gpus_per_node"), named.get("megatron_model_type")
        script = str(named.get("train_script") or "train.py")
        yield TrainingLaunch(_flags_of(words), gpus, model, script, at, call.entry)
    for argv in commands_of(call):
        for place, word in enumerate(argv):
            if _SCRIPT.search(word) or (_MODULE.search(word) and argv[place - 1] == "-m"):
                flags = _flags_of(argv[place + 1 :])
                number = " ".join(flags.get("--num-gpus", ()))
                model = next((match[1] for match in map(_MODEL.search, argv) if match), None)
                yield TrainingLaunch(flags, int(number) if number.isdecimal() else None, model, word, at, call.entry)
                break


def _words(value: Value) -> list[str]:
    return shell_split(value) if isinstance(value, str) else [*map(str, value)] if isinstance(value, list) else []


def _flags_of(argv: Sequence[str]) -> Flags:
    """`--flag value …` and `--flag=value` → values by flag; under "" what belongs to none."""
    flags: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            flags[name] = (value,) if equals else ()
        else:
            of = "" if UNKNOWN.fullmatch(word) and flags.get(name) else name
            flags[of] = (*flags.get(of, ()), word)
    return flags


def _configs(value: Value) -> Iterator[Mapping[str, Any]]:
    """A configuration that is given as a mapping, or as the text of one."""
    if isinstance(value, str) and _CONFIG.search(value):
        import yaml

        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            return
    if isinstance(value, Mapping) and ("sglang" in value or "megatron" in value):
        yield value
