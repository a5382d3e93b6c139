"""How many small faults the tests notice: `python bench/mutations.py --count 200 --seed 1`.

Each mutation changes one place of one module, in a copy of the tree, and runs the tests that import the module, or one
that imports it, those of its folder, and the golden sessions and plans. A mutation that no test notices is a missing
test, or code that does nothing.
What is no fault is left alone: numbers from 10 on, which are limits and times, and arguments that say what a type
checker sees (`frozen=`) or that matter to nothing here (`flush=`).
One JSON line each, and at the end a line for each folder. Exit code 1 if fewer than `--least` percent were noticed.
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
PACKAGE, TESTS = ROOT / "ci_tasks", ROOT / "tests"
TEST_TIMEOUT = 100  # seconds; a mutation that makes a test hang was noticed
TIMEOUT = 3600.0  # the same for all tests of one; more than the whole suite takes on a busy machine
_PAIRS: list[tuple[type[ast.AST], type[ast.AST]]]
_PAIRS = [(ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
_PAIRS += [(ast.And, ast.Or), (ast.Add, ast.Sub)]
_UNSEEN = {"daemon", "flush", "frozen", "repr", "strict"}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.Mult: ast.FloorDiv, **dict(_PAIRS), **{b: a for a, b in _PAIRS}}


@dataclass(frozen=True)
class Mutation:
    """One change: `source` is the module's text with it."""

    path: Path
    line: int
    what: str
    source: str


def fault_of(node: ast.AST) -> tuple[str, str, Any] | None:
    """How a node can be changed: the kind of change, the attribute that it sets, and the new value."""
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in _SWAPS:
            return "comparison", "ops", [_SWAPS[type(first)](), *others]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in _SWAPS:
            return "and/or" if isinstance(node, ast.BoolOp) else "arithmetic", "op", _SWAPS[type(op)]()
        case ast.If() | ast.While() | ast.IfExp():
            return "condition negated", "test", ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool(value)):
            return "constant", "value", not value
        case ast.Constant(value=int(value)) if value < 10:
            return "constant", "value", value + 1
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return "returns None", "value", ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            return "call removed", "value", ast.Constant(None)
    return None


def mutate(path: Path, draw: random.Random) -> Mutation | None:
    """The module with one of its places changed; None if nothing in it can be."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in _UNSEEN}
    nodes = (node for node in ast.walk(tree) if hasattr(node, "lineno") and node not in unseen)
    faults = [(node, fault) for node in nodes if (fault := fault_of(node))]
    if not faults:
        return None
    node, (what, attribute, value) = draw.choice(faults)
    setattr(node, attribute, value)
    return Mutation(path, node.lineno, what, ast.unparse(ast.fix_missing_locations(tree)))


def choose(count: int, seed: int) -> list[Mutation]:
    """`count` mutations: first a module, weighted by its size, then one of its places."""
    draw = random.Random(seed)
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if path.stat().st_size > 300]
    weights = [path.stat().st_size for path in modules]
    chosen: list[Mutation] = []
    while len(chosen) < count:
        (path,) = draw.choices(modules, weights)
        chosen += filter(None, [mutate(path, draw)])
    return chosen


def naming(module: Path, below: Path) -> list[Path]:
    """The files that import the module."""
    dotted = ".".join(["ci_tasks", *module.relative_to(PACKAGE).with_suffix("").parts])
    package, leaf = dotted.rsplit(".", 1)
    named = re.compile(rf"{dotted}\b|from (\.|{package}) import [^\n]*\b{leaf}\b|from \.{leaf} import")
    found = (file for file in below.rglob("*.py") if named.search(file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda file: ("integration" in file.parts, file))


def tests_of(path: Path) -> list[str]:
    """The tests that mirror a module or name it, those of the modules that import it, those of its folder, and the
    two that go through all of them."""
    order = list[Path]()
    for module in (path, *naming(path, PACKAGE)):
        order += [TESTS / module.relative_to(PACKAGE).with_name(f"test_{module.name}"), *naming(module, TESTS)]
    order += sorted((TESTS / path.relative_to(PACKAGE).parent).glob("test_*.py"))
    order += [TESTS / "cli/commands/test_golden.py", TESTS / "record/test_record.py"]
    return [str(test.relative_to(ROOT)) for test in dict.fromkeys(order) if test.exists() and "test_" in test.name]


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
    parser.add_argument("--least", type=int, default=0, metavar="PERCENT")
    options = parser.parse_args()
    killed, total = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        # With its history, which some tests ask: without it they would fail whatever is changed.
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), directory], check=True)
        for mutation in choose(options.count, options.seed):
            where = mutation.path.relative_to(PACKAGE)
            tests = tests_of(mutation.path)
            parts = (noticed_by(mutation, part, Path(directory)) for part in (tests[:1], tests[1:]) if part)
            by = next(filter(None, parts), "")  # most are noticed by the first alone
            for name in ("/".join(where.parts[:2]) if where.parts[0] == "features" else where.parts[0], "all"):
                total[name], killed[name] = total[name] + 1, killed[name] + bool(by)
            line = mutation.path.read_text(encoding="utf-8").splitlines()[mutation.line - 1].strip()
            fault = {"file": str(where), "line": mutation.line, "what": mutation.what, "noticed_by": by, "code": line}
            print(json.dumps(fault), flush=True)
    for name in sorted(total):
        print(json.dumps({"folder": name, "noticed": killed[name], "of": total[name]}))
    sys.exit(100 * killed["all"] < options.least * total["all"])


if __name__ == "__main__":
    main()
