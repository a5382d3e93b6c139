"""Which functions that the probe's hook for verl wraps exist at which revisions, and what they are called with.

    python bench/verl_hooks.py ~/verl v0.6.0 v0.6.1 v0.7.0 v0.7.1 v0.8.0 v0.9.0 main
    python bench/verl_hooks.py ~/Megatron-Bridge v0.2.0 v0.3.0 v0.4.0 v0.5.0 v0.6.0 main
    python bench/verl_hooks.py --write tests/features/verl/hook_names.json ~/verl v0.6.0 … ~/Megatron-LM core_v0.16.0 …

Reads the sources with git, imports nothing. A module that a revision does not have is no gap by itself: releases have
one trainer or another, and each kind of record needs one name of its own. `--write` writes what was found for the test.
Run on 2026-11-23: eleven revisions of verl (2025-10 to 2026-08), six of Megatron-Bridge and six of Megatron-LM; each
has a function for each kind of record that is its own. Missing are workers and trainers of other releases, what serves
rollouts and rewards where Ray's decorator hides it (before 2026-02), and Bridge's `save_hf_adapter` before v0.4.0.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from ci_tasks.features.verl.probe_hook import names_by_module

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
    for module, wanted in names_by_module().items():
        functions = functions_of(source_at(repository, revision, module))
        if functions:
            found[module] = {name: functions[name] for name in wanted if name in functions}
    return found


def package(module: str) -> str:
    return ".".join(module.split(".")[: 2 if module.startswith("megatron.") else 1])


def print_names(revision: str, names: Names) -> None:
    packages = {package(module) for module in names}
    ours = {
        (module, name): kind
        for module, wanted in names_by_module().items()
        if package(module) in packages
        for name, kind in wanted.items()
    }
    found = {key: kind for key, kind in ours.items() if key[1] in names.get(key[0], {})}
    none = sorted(set(ours.values()) - set(found.values()))
    print(f"{revision}: {len(found)} functions, none for: {', '.join(none) or 'no kind of record'}")
    for module, name in sorted(set(ours) - set(found)):
        print(f"    missing {module}:{name}")


def main(words: list[str]) -> None:
    file = Path(words[1]) if words[0] == "--write" else None
    repository, lines = "", []
    for word in words[2 if file else 0 :]:
        if Path(word).expanduser().is_dir():
            repository = str(Path(word).expanduser())
            continue
        names = names_at(repository, word)
        print_names(word, names)
        lines.append(f"{json.dumps(f'{Path(repository).name} {word}')}: {json.dumps(names)}")
    if file:
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
