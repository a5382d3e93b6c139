"""README, CONTRIBUTING, CHANGELOG, docs/ and the commands' own help: every link leads somewhere, and every example is a
command that exists, with flags that it has and values that can be meant. Nothing is executed here."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from invoke.parser import Parser
from invoke.parser.context import ParserContext
from invoke.program import Program
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ci_tasks import sessions
from ci_tasks.cli import namespace
from ci_tasks.flows.looking import moment
from ci_tasks.flows.outline import outline
from ci_tasks.flows.source import open_source
from ci_tasks.runs.history import STATUSES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
OURS = ("invoke", "ci-tasks", "nox")
# The labels of slime's that examples may name, beside those of the sample.
LABELS = {
    "LABEL",
    "cpu-unittest",
    "sglang-config",
    "megatron",
    "precision",
    "ckpt",
    "image",
    "changed",
    "changed-detect",
}
HOSTS = {"local", "sim", "sims", "H", "BOX", "cluster", "h100", "h100a", "h100b", "h100c", "h100d", "a", "b", "c", "d"}
FORMATS = {"lint": ["text", "json", "sarif", "github"], "coverage": ["md", "json", "html"]}
NUMBERS = ("jobs", "repeat", "limit", "level", "steps", "gpus", "days", "nodes")


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: list[str] = []
    opened = False
    for token in tokens(page):
        if opened:
            text = "".join(child.content for child in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
        opened = token.type == "heading_open"
    return frozenset(found)


def links(page: Path) -> Iterator[str]:
    for token in tokens(page):
        target = token.attrGet("href") or token.attrGet("src")
        if target:
            yield str(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{link}: there is no {target}"
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), f"{link}: {sorted(anchors(target))}"


def test_every_page_is_reached_from_the_first() -> None:
    known = {ROOT / "docs" / link.partition("#")[0] for link in links(ROOT / "docs/index.md") if link.endswith(".md")}
    assert known | {ROOT / "docs/index.md"} == set((ROOT / "docs").glob("*.md"))


def examples() -> Iterator[tuple[str, str]]:
    """(where, line) of every line of a shell block, and of a command's help that begins with one of our programs."""
    for page in PAGES:
        for token in tokens(page):
            if token.type == "fence" and token.info in ("bash", "sh", "shell"):
                begun = token.map[0] + 2 if token.map else 0
                for number, line in enumerate(token.content.splitlines(), begun):
                    yield f"{page.name}:{number}", line
    for name, task in namespace.tasks.items():
        for line in (inspect.getdoc(task) or "").splitlines():
            if re.match(r"(invoke|ci-tasks|nox|gh|[A-Z_]+=\S+) ", line):
                yield f"help of {name}", re.split(r" {2,}", line)[0]  # what follows says what it is for


def calls(line: str) -> Iterator[list[str]]:
    """The calls of our programs in a line: each with its words, without what the shell itself reads."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    words.commenters = "#"
    words.whitespace_split = True
    call: list[str] | None = None
    redirected = False
    for word in words:
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


@pytest.mark.parametrize(("where", "call"), EXAMPLES, ids=[f"{where} {shlex.join(call)}" for where, call in EXAMPLES])
def test_every_example_is_a_command_that_there_is(where: str, call: list[str]) -> None:
    program, *words = call
    if program == "nox":
        check_nox(words)
        return
    found = parsed(words)
    for context in found:
        for name, argument in context.args.items():
            if argument.raw_value not in (None, ""):
                check_value(context.name or "", str(name), str(argument.value), words)


def test_there_are_examples_for_every_command() -> None:
    shown = {(where, call[1]) for where, call in EXAMPLES if call[0] != "nox" and len(call) > 1}
    without = [name for name in namespace.task_names if (f"help of {name}", name) not in shown]
    assert not without
    assert len(EXAMPLES) > 100


@pytest.mark.parametrize("name", namespace.task_names)
def test_the_help_of_every_command_begins_with_a_sentence(name: str) -> None:
    first = (inspect.getdoc(namespace[name]) or "").splitlines()[0]
    assert re.fullmatch(r"[A-Z].{10,88}[.?]", first), first


def test_every_flag_of_every_command_is_explained() -> None:
    """In a process of its own: invoke gives the words away once."""
    ask = """from ci_tasks.cli import namespace
for one in namespace.to_contexts():
    print(one.name, [flag for flag, help in one.help_tuples() if not help])"""
    command = [sys.executable, "-c", ask]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert set(told.splitlines()) == {f"{name} []" for name in namespace.task_names}


@cache
def contexts() -> list[ParserContext]:
    return list(namespace.to_contexts())


def parsed(words: list[str]) -> list[ParserContext]:
    """The commands of a line, as the program would read it. Each parse copies all contexts, so it gets few."""
    if words[0] == "--help":
        assert words[1] in namespace.task_names
        return []
    named = [one for one in contexts() if one.name in words]
    core = Program(namespace=namespace).initial_context
    return list(Parser(initial=core, contexts=named).parse_argv(words))


def check_value(command: str, name: str, value: str, words: list[str]) -> None:
    if name == "label":
        assert value in LABELS | set(labels()), value
    elif name == "host":
        assert set(value.split(",")) <= HOSTS, value
    elif name == "format":
        assert value in FORMATS[command], value
    elif name in NUMBERS:
        assert re.fullmatch(r"\d+|N", value), value
    elif name == "status":
        assert set(value.split(",")) <= set(STATUSES), value
    elif name in ("since", "until"):
        moment(name, value, 2e9)
    elif name == "only" and "sim" in words:
        label = next(word for word in words if word in labels())
        assert all(any(part in row for row in labels()[label]) for part in value.split(",")), value


@cache
def labels() -> dict[str, list[str]]:
    return outline(open_source(str(ROOT / "examples/tiny-slime")))


def check_nox(words: list[str]) -> None:
    """The session is a label or one of ours, and what stands behind -- is what a label takes."""
    ours, _, theirs = " ".join(words).partition(" -- ")
    named = re.search(r"-s (.+)", ours)
    if not named:
        assert ours in ("-l", "--list"), ours
        return
    for name in named[1].split():
        label, _, mode = name.partition("(")
        dev = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
        assert label in LABELS | set(labels()) | {"verl"} | set(dev), name
        if mode and label != "verl":
            assert any(mode[:-1] in row for row in labels()[label]), name
        elif label != "verl" and theirs:
            assert sessions._words(label, theirs.split()).host in HOSTS
