"""The statement that failed, read from the tree at its commit where the log names only file and line, or only the first
line of it. Where the tree is not here, or has another line there, it is not seen."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ci_tasks.checkout.repository import find_repository
from ci_tasks.logs.triage.evidence import direction_of, metric_of, of_evidence, one_line
from ci_tasks.logs.triage.signature import is_of_code
from ci_tasks.records import Triage

_MOST_LINES = 20  # of a statement


def with_statement(triage: Triage, repository: Path, commit: str) -> Triage:
    """`triage` with the statement that failed, from the tree of `commit`, where its log does not have all of it."""
    evidence = triage.evidence
    if evidence is None or not (commit and evidence.source_path and evidence.line) or is_whole(evidence.source_line):
        return triage
    found = find_repository(repository)
    if found is None:
        return triage
    git = found.git

    def names() -> list[str]:
        return (git.text_or_none("ls-tree", "-r", "--name-only", commit) or "").splitlines()

    def read(path: str) -> str:
        return git.text_or_none("show", f"{commit}:{path}") or ""

    return completed(triage, names, read)


def completed(triage: Triage, names: Callable[[], Iterable[str]], read: Callable[[str], str]) -> Triage:
    """`triage` with the statement at its place in a tree, whose files are `names`. Pure."""
    evidence = triage.evidence
    if evidence is None or not evidence.line:
        return triage
    path = path_in_tree(evidence.source_path, names())
    statement = statement_at(read(path), evidence.line) if path else ""
    known = "".join(evidence.source_line.split())
    if not statement or not "".join(statement.split()).startswith(known):
        return triage  # another revision of the file
    metric = metric_of(statement, triage.text)
    found = replace(
        evidence,
        source_line=statement,
        metric=metric or evidence.metric,
        direction=evidence.direction or direction_of(statement, triage.text, metric),
    )
    identity = of_evidence(found)
    return replace(triage, signature=identity.signature, kind=identity.kind, evidence=found)


def is_whole(source_line: str) -> bool:
    """Whether a log shows the whole statement: before 3.13 Python prints only the first of its lines."""
    opened = sum(source_line.count(bracket) for bracket in "([{")
    return bool(source_line) and opened <= sum(source_line.count(bracket) for bracket in ")]}")


def path_in_tree(shown: str, names: Iterable[str]) -> str:
    """The file of a tree that a traceback names by its path on some machine: the longest that its path ends with, so
    that `/root/slime/slime/ray/a.py` is `slime/ray/a.py`; "" where there is none. A package's file is none, and a file
    at the root of the tree only by its bare name: any other repository may have a `train.py`."""
    if not is_of_code(f"{shown}:"):
        return ""
    padded = "/" + shown.replace("\\", "/").lstrip("/")
    fits = [name for name in names if name == shown or ("/" in name and padded.endswith(f"/{name}"))]
    return max(fits, key=len, default="")


def statement_at(text: str, line: int) -> str:
    """The simple statement in Python's source `text` that has the line, on one line; of a compound one its head."""
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return ""
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return one_line(lines[line - 1])
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    if not around:
        return ""
    node = max(around, key=lambda node: node.lineno)
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
    return one_line(" ".join(lines[node.lineno - 1 : min(max(end, node.lineno), node.lineno + _MOST_LINES)]))
