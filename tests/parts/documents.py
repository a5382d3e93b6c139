"""The pages of the project, and the calls of our programs that they and the commands' own help show."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ci_tasks import registry
from ci_tasks.cli.commands import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
OURS = ("invoke", "ci-tasks", "nox")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def examples() -> Iterator[tuple[str, str]]:
    """(where, line) of every line of a shell block, and of a command's help that begins with one of our programs."""
    for page in PAGES:
        for token in tokens(page):
            if token.type == "fence" and token.info in ("bash", "sh", "shell"):
                begun = token.map[0] + 2 if token.map else 0
                for number, line in enumerate(token.content.splitlines(), begun):
                    yield f"{name_of(page)}:{number}", line
    for command in commands():
        for line in textwrap.dedent(registry.load(command.function).__doc__ or "").strip().splitlines():
            if re.match(r"(invoke|ci-tasks|nox|gh|[A-Z_]+=\S+) ", line):
                yield f"help of {command.name}", re.split(r" {2,}", line)[0]  # what follows says what it is for


def calls(line: str) -> Iterator[list[str]]:
    """The calls of our programs in a line: each with its words, without what the shell itself reads."""
    argv = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    argv.commenters = "#"
    argv.whitespace_split = True
    call: list[str] | None = None
    redirected = False
    for word in argv:
        if set(word) <= set("|&;<>()"):
            redirected = "<" in word or ">" in word
            if not redirected and call:
                yield call
                call = None
        elif redirected:
            redirected = False
        elif call is not None:
            call.append(word)
        elif os.path.basename(word) in OURS:
            call = [os.path.basename(word)]
    if call:
        yield call


EXAMPLES = [(where, call) for where, line in examples() for call in calls(line)]
