"""How many small faults the tests notice: `python bench/mutations.py --count 200 --seed 1`.

Each mutation changes one place of one module, in a copy of the tree, and runs the tests that import the module or
mirror it, then with `--all` the whole suite. A mutation that no test notices is a missing test, or
code that does nothing. One JSON line each, and at the end a line for each folder.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ci_tasks"
TEST_TIMEOUT = 100  # seconds; a mutation that makes a test hang was noticed
TIMEOUT = 3600.0  # seconds for all tests of a mutation; more than the whole suite takes on a busy machine
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutation:
    """One change: `source` is the module's text with it."""

    path: Path
    line: int
    what: str
    source: str


def places_of(path: Path) -> list[tuple[int, str]]:
    """Where a module can be changed, and how: (number of the node, kind of change)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(number, what) for number, node in enumerate(_nodes(tree)) for what in _ways(node)]


def mutate(path: Path, number: int, what: str) -> Mutation:
    """The module with one place of `places_of` changed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = _nodes(tree)[number]
    line = node.lineno
    _apply(node, what)
    return Mutation(path, line, what, ast.unparse(ast.fix_missing_locations(tree)))


def _nodes(tree: ast.Module) -> list[Any]:
    return [node for node in ast.walk(tree) if hasattr(node, "lineno")]


def _ways(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        return ["comparison"]
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        return ["arithmetic"]
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return ["condition negated"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        return ["constant"]
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return ["returns None"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ["call removed"]
    return []


def _apply(node: ast.AST, what: str) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else int(str(node.value)) + 1
    elif isinstance(node, ast.Return | ast.Expr):
        node.value = ast.Constant(None)


def choose(count: int, seed: int, folder: str) -> list[Mutation]:
    """`count` mutations: first a module, weighted by its size, then one of its places."""
    draw = random.Random(seed)
    modules = [path for path in sorted((PACKAGE / folder).rglob("*.py")) if path.stat().st_size > 300]
    weights = [path.stat().st_size for path in modules]
    chosen: list[Mutation] = []
    while len(chosen) < count:
        (path,) = draw.choices(modules, weights)
        places = places_of(path)
        if places:
            chosen.append(mutate(path, *draw.choice(places)))
    return chosen


def tests_of(path: Path) -> list[str]:
    """The tests that mirror a module or name it, the quick ones first."""
    inside = path.relative_to(PACKAGE).with_suffix("")
    dotted = ".".join(["ci_tasks", *inside.parts])
    package, leaf = dotted.rsplit(".", 1)
    named = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{leaf}\b")
    mirror = ROOT / "tests" / inside.parent / f"test_{leaf}.py"
    found = {test for test in (ROOT / "tests").rglob("test_*.py") if named.search(test.read_text(encoding="utf-8"))}
    beside = [*sorted(mirror.parent.glob("test_*.py")), *sorted(mirror.parent.parent.glob("test_*.py"))]
    order = [
        *([mirror] if mirror.exists() else []),
        *sorted(found, key=lambda test: "integration" in test.parts),
        *beside,
    ]
    return [str(test.relative_to(ROOT)) for test in dict.fromkeys(order)]


def noticed_by(mutation: Mutation, tests: list[str], copy_of_tree: Path) -> str:
    """The test that fails with the mutation; empty where none does."""
    target = copy_of_tree / mutation.path.relative_to(ROOT)
    original = target.read_text(encoding="utf-8")
    target.write_text(mutation.source, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT}", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy_of_tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(words, cwd=copy_of_tree, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "nothing ended in time"
    finally:
        target.write_text(original, encoding="utf-8")
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit code {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="", help="only this folder of ci_tasks")
    parser.add_argument("--all", action="store_true", help="run the whole suite on what its own tests do not notice")
    options = parser.parse_args()
    killed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(f"git archive HEAD | tar -x -C {directory}", shell=True, cwd=ROOT, check=True)
        for mutation in choose(options.count, options.seed, options.folder):
            where = mutation.path.relative_to(PACKAGE)
            tests = tests_of(mutation.path)
            by = noticed_by(mutation, tests, Path(directory)) if tests else ""
            if not by and options.all:
                by = noticed_by(mutation, ["tests"], Path(directory))
            folder = "/".join(where.parts[:2]) if where.parts[0] == "features" else where.parts[0]
            total[folder] += 1
            killed[folder] += bool(by)
            line = mutation.path.read_text(encoding="utf-8").splitlines()[mutation.line - 1].strip()
            fault = {"file": str(where), "line": mutation.line, "what": mutation.what, "noticed_by": by, "code": line}
            print(json.dumps(fault), flush=True)
    for folder in sorted(total):
        print(json.dumps({"folder": folder, "noticed": killed[folder], "of": total[folder]}))
    print(json.dumps({"noticed": sum(killed.values()), "of": sum(total.values())}))


if __name__ == "__main__":
    main()
