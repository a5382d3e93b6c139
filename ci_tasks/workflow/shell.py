"""Finding the `docker run` in a step's script, to learn which image CI uses. Never used to run anything.

As much of bash's grammar as that takes: words, quotes, comments, here-documents, command substitutions, assignments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ci_tasks.agent.containers.docker_argv import DockerArgvError, DockerRun, is_run, parse_run

# Words before a command that still run it: bash's own, and programs whose arguments are options, numbers and settings.
_BEFORE = frozenset(
    ["then", "do", "else", "elif", "if", "while", "until", "time", "!", "{", "exec", "command", "builtin"]
    + ["env", "sudo", "nohup", "nice", "timeout"]
)
_VALUED = frozenset({"-u", "-g", "-h", "-p", "-C", "-T", "-n", "-s", "-k"})  # options with a value behind them
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_DURATION = re.compile(r"[0-9.]+[smhd]?")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}]*))?\})")
_HEREDOC = re.compile(r"<<(-?)[ \t]*([\"']?)([A-Za-z0-9_.!-]+)\2")
_CONTROL = frozenset(";&|()`\n")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,*{}\[\]~^!?-]+|\$(?!\()")
_PLAIN_QUOTED = re.compile(r'[^"\\$]+|\$(?!\()')


def docker_run(script: str, variables: Mapping[str, str] | None = None) -> DockerRun | None:
    """The first `docker run` of a bash script, its words as bash would split them; or None.

    The image's `$NAME` and `${NAME:-default}` are filled in from `variables` and the script's own plain assignments.
    """
    values = dict(variables or {})
    for argv in commands(script):
        run = _run(argv)
        if run:
            return replace(run, image=_expanded(run.image, values))
        for word in argv[1:] if argv[0] in ("export", "readonly", "local", "declare") else argv:
            assigned = _ASSIGNMENT.fullmatch(word)
            if not assigned:
                break
            values[assigned[1]] = _expanded(assigned[2], values)
    return None


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script in order, each as its words, quotes removed and variables unexpanded.

    Those of a command substitution come before the command that they are part of.
    """
    yield from _Lexer(script).commands()


def _run(command: list[str]) -> DockerRun | None:
    at = 0
    while at < len(command) and command[at].rsplit("/", 1)[-1] != "docker":
        word = command[at]
        if word in _VALUED:
            at += 1
        elif not (word in _BEFORE or word.startswith("-") or _ASSIGNMENT.match(word) or _DURATION.fullmatch(word)):
            return None
        at += 1
    argv = command[at + 1 :]
    try:
        run = parse_run(argv) if is_run(argv) else None
    except DockerArgvError:
        return None
    # A space behind a line's last backslash ends the command there, and leaves a blank for an image.
    return run if run and run.image.strip() else None


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values.get(name) or (match[0] if match[3] is None else match[3])

    return _VARIABLE.sub(value, text)


class _Lexer:
    """One pass over the text. `stack` holds the commands around a `$(`, as (words, word, inside double quotes)."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\\\r\n", "").replace("\\\n", "")
        self.at = 0
        self.words: list[str] = []
        self.word: str | None = None
        self.quoted = False
        self.stack: list[tuple[list[str], str, bool]] = []
        self.heredocs: list[tuple[bool, str]] = []

    def commands(self) -> Iterator[list[str]]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if plain := (_PLAIN_QUOTED if self.quoted else _PLAIN).match(self.text, self.at):
                self._add(plain[0], len(plain[0]))
            elif char == "\\":
                self._add(self.text[self.at + 1 : self.at + 2], 2)
            elif self.text.startswith("$((", self.at):
                self._arithmetic()
            elif self.text.startswith("$(", self.at):
                self.stack.append((self.words, self.word or "", self.quoted))
                self.words, self.word, self.quoted = [], None, False
                self.at += 2
            elif char == '"':
                self.quoted = not self.quoted
                self._add("", 1)
            elif char == ")" and self.stack:
                yield from self._command()
                self.words, self.word, self.quoted = self.stack.pop()
                self._add("$(…)", 1)
            else:
                yield from self._unquoted(char)
        yield from self._command()

    def _unquoted(self, char: str) -> Iterator[list[str]]:
        if char == "'":
            end = self.text.find("'", self.at + 1)
            end = len(self.text) if end < 0 else end
            self._add(self.text[self.at + 1 : end], end + 1 - self.at)
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text.startswith("<<<", self.at):
            self._end_word()
            self.at += 3
        elif heredoc := _HEREDOC.match(self.text, self.at):
            self._end_word()
            self.heredocs.append((bool(heredoc[1]), heredoc[3]))
            self.at = heredoc.end()
        elif char in _CONTROL:
            yield from self._command()
            self.at += 1
            if char == "\n":
                self._skip_heredocs()
        elif char in " \t\r":
            self._end_word()
            self.at += 1
        else:
            self._add(char, 1)

    def _add(self, text: str, length: int) -> None:
        self.word = (self.word or "") + text
        self.at += length

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
        self.word = None

    def _command(self) -> Iterator[list[str]]:
        self._end_word()
        if self.words:
            yield self.words
        self.words = []

    def _arithmetic(self) -> None:
        end = self.text.find("))", self.at)
        end = len(self.text) if end < 0 else end + 2
        self._add(self.text[self.at : end], end - self.at)

    def _skip_heredocs(self) -> None:
        for tabs, delimiter in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else None]
                self.at += len(line) + 1
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == delimiter:
                    break
        self.heredocs = []
