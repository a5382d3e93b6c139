"""A step's script as text, never run: its commands, the `docker run` among them that says which image CI uses; and
the file that a step writes its outputs into.

As much of bash's grammar as that takes: words, quotes, comments, here-documents, command substitutions, assignments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ci_tasks.agent.docker_argv import DockerArgvError, DockerRun, is_run, parse_run
from ci_tasks.errors import WorkflowError

# Words before a command that still run it: bash's own, and programs whose arguments are options, numbers and settings.
_BEFORE = frozenset(
    ("then", "do", "else", "elif", "if", "while", "until", "time", "!", "{", "exec", "command", "builtin", "env")
    + ("sudo", "nohup", "nice", "timeout")
)
_VALUED = frozenset({"-u", "-g", "-h", "-p", "-C", "-T", "-n", "-s", "-k"})  # options with a value behind them
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_DURATION = re.compile(r"[0-9.]+[smhd]?")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}]*))?\})")
_HEREDOC = re.compile(r"([^=]+?)<<(.+)")  # of GITHUB_OUTPUT
_IN_QUOTES = r"""
    (?P<escape>\\(?P<escaped>.?)) | (?P<arithmetic>\$\(\(.*?(?:\)\)|\Z)) | (?P<open>\$\() | (?P<quote>") | """
_QUOTED = re.compile(rf"{_IN_QUOTES} (?P<text>[^\"\\$]+|\$)", re.DOTALL | re.VERBOSE)
_PLAIN = re.compile(
    rf"""{_IN_QUOTES}
    '(?P<single>[^']*)(?:'|\Z) | (?P<heredoc><<(?P<tabs>-?)[ \t]*(["']?)(?P<end>[A-Za-z0-9_.!-]+)["']?)
    | (?P<blank>[ \t\r]+|<<<) | (?P<control>[;&|()`\n]) | (?P<text>[^\s\\$"'<;&|()`#]+|.)""",
    re.DOTALL | re.VERBOSE,
)


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

    Commands of a command substitution come before the command that contains it.
    """
    text = script.replace("\\\r\n", "").replace("\\\n", "")
    words, word, is_quoted, at = list[str](), None, False, 0
    stack: list[tuple[list[str], str, bool]] = []  # the commands around a `$(`
    heredocs: list[tuple[str, str]] = []
    while at < len(text):
        if text[at] == "#" and word is None and not is_quoted:
            at = _end_of_line(text, at)
            continue
        match = (_QUOTED if is_quoted else _PLAIN).match(text, at)
        assert match is not None, "the last alternative takes any character"
        found, at = match.groupdict(), match.end()
        if found["open"]:
            stack.append((words, word or "", is_quoted))
            words, word, is_quoted = [], None, False
        elif found.get("blank") or found.get("heredoc") or found.get("control"):
            words, word = ([*words, word], None) if word is not None else (words, None)
            if found["heredoc"]:
                heredocs.append((found["tabs"], found["end"]))
            if found["control"] and words:
                yield words
            words = [] if found["control"] else words
            if found["control"] == ")" and stack:
                words, outer, is_quoted = stack.pop()
                word = f"{outer}$(…)"
            if found["control"] == "\n":
                at, heredocs = _behind(text, at, heredocs), []
        else:
            is_quoted ^= bool(found["quote"])
            pieces = (found["escaped"], found["arithmetic"], found.get("single"), found["text"])
            word = (word or "") + "".join(piece for piece in pieces if piece)
    if word is not None:
        words.append(word)
    if words:
        yield words


def _behind(text: str, at: int, heredocs: list[tuple[str, str]]) -> int:
    """Where the here-documents that begin at `at` are over."""
    for tabs, end in heredocs:
        line = ""
        while at < len(text) and line != end:
            stop = _end_of_line(text, at)
            line = text[at:stop].rstrip("\r")
            line, at = line.lstrip("\t") if tabs else line, stop + 1
    return at


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


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
        return values.get(match[1] or match[2]) or (match[0] if match[3] is None else match[3])

    return _VARIABLE.sub(value, text)


# -- $GITHUB_OUTPUT ----------------------------------------------------------------------------------------------------


def parse_outputs(text: str) -> dict[str, str]:
    """`name=value` lines and `name<<END … END` blocks, as GitHub's "Workflow commands" describe them.

    Raises WorkflowError for what makes GitHub fail the step: another line, or a block without its end.
    """
    outputs: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\n", text))
    for line in lines:
        if block := _HEREDOC.fullmatch(line):
            outputs[block[1]] = _block(lines, block[2], line)
        elif line.find("=") > 0:
            name, _, value = line.partition("=")
            outputs[name] = value
        elif line:
            raise WorkflowError("GITHUB_OUTPUT has a line that is neither `name=value` nor `name<<END`", text=line)
    return outputs


def _block(lines: Iterator[str], end: str, opening: str) -> str:
    body: list[str] = []
    for line in lines:
        if line == end:
            return "\n".join(body)
        body.append(line)
    raise WorkflowError(f"GITHUB_OUTPUT has no line {end!r}, which ends a block", text=opening)
