"""The house's rules about its rooms: imports go one way, pure rooms stay pure, the runner stands alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ci_tasks"
# From the ground up; a room imports only rooms before it. Rooms on one line do not import each other.
LEVELS = [
    ["errors", "model", "resources", "__init__"],
    ["yaml_lines", "door", "parser", "manual"],
    ["config"],
    ["workflow"],
    ["suites"],
    ["plan"],
    ["judge", "report"],
    ["hosts", "sync", "runs", "forge", "hub"],
    ["flows"],
    ["sessions", "commands", "completion"],
    ["cli"],
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
PURE = ["model", "yaml_lines", "config", "workflow", "suites", "plan", "judge", "report"]
# What touches the world. `time` and `datetime` are clocks.
WORLD = {
    "subprocess",
    "socket",
    "time",
    "datetime",
    "shutil",
    "tempfile",
    "pathlib",
    "os",
    "fabric",
    "requests",
    "huggingface_hub",
    "random",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a module imports, at its top or inside a function; relative ones made absolute."""
    package = ["ci_tasks", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def our_rooms(path: Path) -> set[str]:
    names = (name.split(".") for name in imports(path))
    return {parts[1] for parts in names if parts[0] == "ci_tasks" and len(parts) > 1} - {room_of(path), "__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_rooms_below_its_own(path: Path) -> None:
    room = room_of(path)
    if room == "runner":
        assert our_rooms(path) == set(), "the runner travels alone"
        return
    above = {other for other in our_rooms(path) - {"runner"} if LEVEL[other] >= LEVEL[room]}
    assert not above, f"{room} may not import {above}"


@pytest.mark.parametrize("path", [path for path in modules() if room_of(path) in PURE], ids=lambda path: path.name)
def test_a_pure_room_has_no_process_socket_file_or_clock(path: Path) -> None:
    touched = {name.split(".")[0] for name in imports(path)} & WORLD
    calls = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    opened = {call.id for call in calls if isinstance(call, ast.Name) and call.id in ("open", "print", "input", "exec")}
    assert not touched | opened


def test_every_module_opens_by_saying_what_it_knows() -> None:
    silent = [str(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert not silent
