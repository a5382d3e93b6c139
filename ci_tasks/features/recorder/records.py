"""What a test launches: its calls with their arguments, and where it stopped.

A part of a text that is not known stands as ⟨expression⟩.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from ci_tasks.agent.quick_dataclass import dataclass

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

RECORDED, READ = "recorded", "read"  # by running the test under stubs, or from its syntax tree
MAIN, PYTEST, NONE = "main", "pytest", "none"
UNKNOWN = re.compile("⟨[^⟨⟩]*⟩")
ROOT = "/checkout"  # where a recorded test sees the checkout
_STARTERS = re.compile(
    r"subprocess\.(run|call|check_call|check_output|Popen|getoutput|getstatusoutput)|os\.(system|popen)"
)
_OPERATORS = frozenset(";&|\n")


@dataclass(frozen=True)
class LaunchCall:
    """A call of a suite's helper, of the standard library's `subprocess`, or of a package.

    `target` is the function as imported ("subprocess.run"), `place` is the innermost line of the checkout
    (`tests/test_x.py:7`), `env` what the test had set in its environment.
    """

    target: str
    args: Sequence[Value]
    kwargs: Mapping[str, Value]
    place: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def function(self) -> str:
        return self.target.rpartition(".")[2]

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command that the standard library was asked to start; [] for other calls."""
        command = self.args[0] if self.args else self.kwargs.get("args", self.kwargs.get("cmd"))
        return commands_in(command) if _STARTERS.fullmatch(self.target) else []


@dataclass(frozen=True)
class Recording:
    """What a test launches. `entry` is how `python FILE` begins it: a `__main__` block, pytest called by that block, or
    not at all. `constants` are the module's, `stops` say why it is not seen from there on, `tests` are the names of its
    test functions."""

    calls: tuple[LaunchCall, ...] = ()
    constants: Mapping[str, Value] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    entry: str = NONE
    doc: str = ""
    origin: str = READ


def shell_split(text: str) -> list[str]:
    """The words that a shell would make of a text, as far as quotes go."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def commands_in(command: Value) -> list[list[str]]:
    """The words of each command of a line of shell (`a && b; c` has three), or of a list of words."""
    if isinstance(command, list):
        return [[str(word) for word in command]]
    if not isinstance(command, str):
        return []
    lexer = shlex.shlex(command, posix=True, punctuation_chars="".join(_OPERATORS))
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= _OPERATORS:
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError:
        return [shell_split(command)]
    return [command_words for command_words in commands if command_words]
