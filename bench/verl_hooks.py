"""Which names that the probe's hook for verl wraps exist at which revisions of verl, Megatron-Bridge and Megatron-LM.

    python bench/verl_hooks.py ~/verl v0.6.1 v0.7.0 v0.7.1 v0.8.0 v0.9.0 main
    python bench/verl_hooks.py ~/Megatron-Bridge v0.3.0 v0.4.0 v0.5.0 v0.6.0 main

Reads the sources with git, imports nothing. A module that a revision does not have is no gap by itself: releases have
one trainer or another, and each kind of record needs one name of its own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from ci_tasks.features.verl.probe_hook import names_by_module


def names_of(source: str) -> set[str]:
    """The functions and classes of a module, and the methods of its classes."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def source_at(repository: str, revision: str, module: str) -> str | None:
    path = module.replace(".", "/") + ".py"
    for top in ("", "src/"):
        shown = subprocess.run(
            ["git", "-C", repository, "show", f"{revision}:{top}{path}"], capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:
            return shown.stdout
    return None


def main(repository: str, revisions: list[str]) -> None:
    head = {path.name for path in Path(repository).iterdir()} | {path.name for path in Path(repository).glob("src/*")}
    for revision in revisions:
        missing: list[str] = []
        kinds: dict[str, list[str]] = defaultdict(list)
        for module, wanted in names_by_module().items():
            if module.split(".")[0] not in head:
                continue
            source = source_at(repository, revision, module)
            has = names_of(source) if source is not None else set()
            for name, kind in wanted.items():
                (kinds[kind] if name in has else missing).append(f"{module}:{name}")
                kinds[kind] = kinds[kind]
        none = [kind for kind, names in kinds.items() if not names]
        print(f"{revision}: {sum(map(len, kinds.values()))} names, no name for: {', '.join(none) or 'nothing'}")
        for name in missing:
            print(f"    missing {name}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
