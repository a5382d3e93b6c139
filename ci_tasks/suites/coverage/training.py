"""The trainings that a test starts, each with its flags; and what it writes for them to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.interface import commands_of, helper_of, named
from ci_tasks.suites.reading.values import Call, Partly, Reading, Text

_SCRIPT = re.compile(r"(?:^|/)train(?:_\w+)?\.py$")
_MODULE = re.compile(r"^[\w.]+\.train(?:_\w+)?$")
_SERVER = re.compile(r"^sglang\.launch_server$|^sglang_router")


@dataclass(frozen=True)
class Training:
    """One start of a training. `flags` are those it is given, the last of several; a value that only a run would know
    stands as ⟨its expression⟩. `call` is the place of its call in the reading."""

    flags: Mapping[str, tuple[str, ...]]
    gpus: int | None
    model_script: str | None
    script: str
    call: int
    line: int
    entry: str

    def value(self, flag: str, default: str = "") -> str:
        values = self.flags.get(flag)
        return default if values is None else " ".join(values)

    def number(self, flag: str, default: int = 1) -> int:
        """A flag's number; the default too where it is not a number that is known."""
        text = self.value(flag)
        return int(text) if text.isdecimal() else default


@dataclass(frozen=True)
class Written:
    """What the test itself makes for the trainings: configurations as mappings, and servers that it starts."""

    configs: tuple[Mapping[str, Any], ...] = ()
    servers: tuple[Mapping[str, tuple[str, ...]], ...] = field(default=())

    def section(self, name: str) -> list[Any]:
        """The entries of every configuration's `name:`."""
        return [item for config in self.configs for item in config.get(name) or [] if isinstance(item, Mapping)]


def trainings(reading: Reading) -> list[Training]:
    """Every training, in the order in which they would start."""
    return [training for place, call in enumerate(reading.calls) for training in _of(call, place)]


def written(reading: Reading) -> Written:
    configs = tuple(config for call in reading.calls for value in call.args for config in _configs(value))
    servers = tuple(
        flags_of(words)
        for call in reading.calls
        for words in commands_of(call)
        if any(isinstance(word, str) and _SERVER.search(word) for word in words)
    )
    return Written(configs, servers)


def flags_of(words: Sequence[Text]) -> dict[str, tuple[str, ...]]:
    """`--flag value …` and `--flag=value` → values by flag; words before the first flag are left out."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if isinstance(word, str) and word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            found[name] = (value,) if equals else ()
        elif name:
            found[name] = (*found[name], str(word))
    return found


def _of(call: Call, place: int) -> Iterator[Training]:
    if helper_of(call) == "execute_train":
        yield _from_helper(call, place)
        return
    for words in commands_of(call):
        for at, word in enumerate(words):
            if isinstance(word, str) and (_SCRIPT.search(word) or (_MODULE.search(word) and words[at - 1] == "-m")):
                flags = flags_of(words[at + 1 :])
                number = " ".join(flags.get("--num-gpus", ()))
                gpus = int(number) if number.isdecimal() else None
                yield Training(flags, gpus, _sourced(words), word, place, call.line, call.entry)
                break


def _from_helper(call: Call, place: int) -> Training:
    given = named(call)
    arguments = given.get("train_args")
    if _has_flags(arguments):
        model, script = given.get("megatron_model_type"), given.get("train_script")
        return Training(
            flags=flags_of(_words(arguments)),
            gpus=_count(given.get("num_gpus_per_node")),
            model_script=model if isinstance(model, str) else None,
            script=script if isinstance(script, str) else "train.py",
            call=place,
            line=call.line,
            entry=call.entry,
        )
    # A helper of another shape: flags are words of their own, the first number is how many GPUs.
    words = [word for value in call.args for word in _words(value)]
    gpus = next((found for value in (*call.args, *call.kwargs.values()) if (found := _count(value)) is not None), None)
    return Training(flags_of(words), gpus, None, "train.py", place, call.line, call.entry)


def _has_flags(value: Any) -> bool:
    return any(isinstance(word, str) and word.startswith("--") for word in _words(value))


def _words(value: Any) -> list[Text]:
    if isinstance(value, str | Partly):
        return texts.words(value)
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str | Partly) else str(item) for item in value]
    return []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sourced(words: Sequence[Text]) -> str | None:
    """The model script that the same command sources, `scripts/models/NAME.sh`."""
    for word in words:
        if found := re.search(r"scripts/models/([^/\s]+)\.sh$", str(word)):
            return found[1]
    return None


def _configs(value: Any) -> Iterator[Mapping[str, Any]]:
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
