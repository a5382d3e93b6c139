"""README, AGENTS, CONTRIBUTING, CHANGELOG, docs/ and the commands' own help: every link leads somewhere, and every
example is a command that exists, with flags that it has and values that can be meant. Nothing is executed here."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from ci_tasks import config
from ci_tasks.cli import program
from ci_tasks.cli.list_runs import parse_time
from ci_tasks.cli.options import build, options_of
from ci_tasks.cli.program import SCRIPTS
from ci_tasks.cli.sessions import parse_posargs
from ci_tasks.errors import CiTasksError
from ci_tasks.records import STATUSES
from ci_tasks.run.checkout_source import open_source, outline
from docs import generate
from tests.parts.commands import COMMANDS, options_of_command
from tests.parts.documents import EXAMPLES, PAGES, ROOT, name_of, tokens

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


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    slugs: list[str] = []
    opened = False
    for token in tokens(page):
        if opened:
            text = "".join(child.content for child in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
        opened = token.type == "heading_open"
    return frozenset(slugs)


def links(page: Path) -> Iterator[str]:
    for token in tokens(page):
        target = token.attrGet("href") or token.attrGet("src")
        if target:
            yield str(target)


def test_every_link_has_a_target() -> None:
    assert [f"{name_of(page)}: {link}" for page in PAGES for link in links(page) if not has_target(page, link)] == []


def has_target(page: Path, link: str) -> bool:
    """Whether the link leads to a page of ours and an anchor that it has, or is one of https."""
    if re.match(r"[a-z]+:", link):
        return link.startswith("https://")
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.is_file() and target.is_relative_to(ROOT) and (not anchor or anchor in anchors(target))


def test_every_path_of_the_project_exists() -> None:
    """A path in backquotes that begins with a folder of ours, and a dotted name of a module or of something in it."""
    missing = []
    for page in PAGES:
        for text in {token.content for token in tokens(page) if token.type == "code_inline"}:
            if re.fullmatch(r"(ci_tasks|tests|bench|docs|examples|\.ci|\.github)/[\w./-]+", text):
                exists = (ROOT / text).exists() or "NAME" in text or text.startswith("tests/ci/")  # a slime checkout's
            elif re.fullmatch(r"ci_tasks(\.\w+)+", text):
                path = ROOT / text.replace(".", "/")
                exists = any(
                    (candidate.with_suffix(".py")).is_file() or candidate.is_dir() for candidate in (path, path.parent)
                )
            else:
                continue
            if not exists:
                missing.append(f"{name_of(page)}: {text}")
    assert not missing


def test_every_page_is_linked_from_the_index() -> None:
    pages = {ROOT / "docs" / link.partition("#")[0] for link in links(ROOT / "docs/index.md") if link.endswith(".md")}
    assert pages | {ROOT / "docs/index.md"} == set((ROOT / "docs").rglob("*.md"))


def test_every_example_is_a_valid_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BRIDGE_REPO", "VERL_REPO"):  # the pages set them once
        monkeypatch.setenv(variable, "/trees")
    wrong = []
    for where, call in EXAMPLES:
        try:
            check_example(call)
        except (AssertionError, CiTasksError, KeyError) as error:
            wrong.append(f"{where}: {shlex.join(call)}: {error!r}")
    assert wrong == []


def check_example(call: list[str]) -> None:
    program, *argv = call
    if program == "nox":
        check_nox(argv)
        return
    for context in parsed(argv):
        options = options_of_command(context.name)
        values = {name: value for name, value in context.values.items() if value != "N"}
        for name, value in vars(build(options, values, context.name)).items():
            if name in values and options_of(options)[name].kind is str:
                check_value(name, str(value), argv)


def test_the_reference_of_the_commands_is_that_of_the_declared_options() -> None:
    """The page is generated, so that neither can say something else."""
    written = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert written == generate.page(), "`python docs/generate.py` writes it"


def test_every_command_has_an_example() -> None:
    shown = {(where, call[1]) for where, call in EXAMPLES if call[0] != "nox" and len(call) > 1}
    without = [name for name in COMMANDS if (f"help of {name}", name) not in shown]
    assert not without
    assert len(EXAMPLES) > 100


def test_the_help_of_every_command_begins_with_a_sentence() -> None:
    assert [name for name in COMMANDS if not re.fullmatch(r"[A-Z].{10,88}[.?]", COMMANDS[name].summary)] == []


def parsed(argv: list[str]) -> list[program.ParsedCommand]:
    """The commands of a line, as the program reads it."""
    if argv[0] in ("--help", "-h"):
        assert argv[1] in COMMANDS
        return []
    if argv[0] == "--print-completion-script":
        assert argv[1] in SCRIPTS
        return []
    line = program.parse(argv)
    return [] if line.current is line.program else [line.current]


def check_value(name: str, value: str, argv: list[str]) -> None:
    if name == "label":
        assert value in LABELS | set(labels()), value
    elif name == "host":
        assert set(value.split(",")) <= HOSTS, value
    elif name == "status":
        assert set(value.split(",")) <= set(STATUSES), value
    elif name in ("since", "until"):
        parse_time(name, value, 2e9)
    elif name == "only" and "sim" in argv:
        label = next(word for word in argv if word in labels())
        assert all(any(part in row for row in labels()[label]) for part in value.split(",")), value


@cache
def labels() -> dict[str, list[str]]:
    return outline(open_source(str(ROOT / "examples/tiny-slime")))


@cache
def texts_of_the_source() -> tuple[str, ...]:
    """Every text of the package that may be a message, with … for each value that is put into it."""
    found: set[str] = set()
    for path in (ROOT / "ci_tasks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.sub(r"%[0-9.]*[a-z]", "…", node.value))
    for path in (ROOT / "ci_tasks").rglob("*.sh"):
        found.update(path.read_text(encoding="utf-8").splitlines())
    return tuple(found)


MESSAGES = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_message_of_troubleshooting_is_one_of_the_program() -> None:
    source = "\0".join(texts_of_the_source())
    assert [message for message in MESSAGES if not is_message(message, source)] == []


def is_message(message: str, source: str) -> bool:
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    return len(message) > 10 and re.search("[^\0]*".join(parts), source) is not None


def test_every_hosts_file_is_valid() -> None:
    files = [
        f"{name_of(page)}:{(token.map or [0])[0] + 1}"
        for page in PAGES
        for token in tokens(page)
        if token.type == "fence" and token.info == "yaml" and config.read(token.content) == config.read("")
    ]
    assert files == [], "nothing in them"


def keys_of_tables(page: Path) -> set[str]:
    """What stands in backquotes in the first column of the page's tables, without a value behind it."""
    rows = re.findall(r"^\| (`.*?`) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {key.partition(":")[0] for row in rows for key in re.findall(r"`([^`]+)`", row)}


def test_hosts_md_describes_every_key() -> None:
    described = keys_of_tables(ROOT / "docs/hosts.md")
    assert described >= {*config.keys_of(config.HostSpec), *config.keys_of(config.Override)} - {"job", "step"}


def check_nox(argv: list[str]) -> None:
    """The session is a label or one of noxfile.py's own, and what follows -- is valid for a label."""
    nox_words, _, posargs = " ".join(argv).partition(" -- ")
    sessions = re.search(r"-s (.+)", nox_words)
    if not sessions:
        assert nox_words in ("-l", "--list"), nox_words
        return
    for name in sessions[1].split():
        label, _, mode = name.partition("(")
        dev = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
        assert label in LABELS | set(labels()) | {"verl"} | set(dev), name
        if mode and label != "verl":
            assert any(mode[:-1] in row for row in labels()[label]), name
        elif label != "verl" and posargs:
            options = parse_posargs(label, posargs.split())
            assert options is not None and options.host in HOSTS


def test_the_fast_part_of_the_tests_exists() -> None:
    """The paths that noxfile.py gives pytest on other versions of Python."""
    lines = re.findall(r"^FAST \+?= \[(.*)\]$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    paths = [path.strip(' "') for line in lines for path in line.split(",")]
    assert len(paths) > 5
    assert not [path for path in paths if not (ROOT / path).exists()]
