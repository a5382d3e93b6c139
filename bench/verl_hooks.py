"""Writes which functions that the probe's hook for verl wraps exist at which revisions, and what they are called with.

    python bench/verl_hooks.py tests/features/verl/hook_names.json ~/verl v0.7.0 … ~/Megatron-Bridge v0.2.0 … main

Reads the sources with git, imports nothing. Of a directory and the revisions behind it, each becomes an entry of the
file; `tests/features/verl/test_probe_hook.py` says what is missing in one.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from ci_tasks.features.verl.probe_hook import MODULES, TABLE

Names = dict[str, dict[str, list[str]]]  # module → name in it → its parameters


def functions_of(source: str) -> dict[str, list[str]]:
    """The functions of a module and the methods of its classes, with their parameters. Of a class that Ray's decorator
    makes another object of, a hook does not reach the methods."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = parameters(node)
        if isinstance(node, ast.ClassDef) and not any("remote" in ast.unparse(part) for part in node.decorator_list):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}": parameters(method) for method in methods}
    return found


def parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]


def source_at(repository: str, revision: str, module: str) -> str:
    path = module.replace(".", "/") + ".py"
    for top in ("", "src/"):
        shown = subprocess.run(
            ["git", "-C", repository, "show", f"{revision}:{top}{path}"], capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:
            return shown.stdout
    return ""


def names_at(repository: str, revision: str) -> Names:
    found: Names = {}
    for module in MODULES:
        wanted = [name for own, name, _ in TABLE if own == module]
        functions = functions_of(source_at(repository, revision, module))
        if functions:
            found[module] = {name: functions[name] for name in wanted if name in functions}
    return found


def main(file: str, *words: str) -> None:
    repository, lines = Path(), []
    for word in words:
        if (path := Path(word).expanduser()).is_dir():
            repository = path
        else:
            names = names_at(str(repository), word)
            lines.append(f"{json.dumps(f'{repository.name} {word}')}: {json.dumps(names)}")
    Path(file).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
