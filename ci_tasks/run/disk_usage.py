"""What lies under a directory of ours after `clean`, by `du`: every byte, whoever wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.hosts.queries import QueryRunner

_TIMEOUT_S = 120.0
_DU = 'd=$1; case $d in "~/"*) d=$HOME/${d#"~/"};; esac; [ ! -e "$d" ] || exec du -ak -d1 -- "$d"'
_PURPOSE = {
    "runs": "records, logs and artifacts of runs; --days N removes older ones",
    "environments": "packages that runs with the same install steps share; --all removes them",
    "sync": "objects of checkouts, so that only what changed travels",
    "commits": "commits of CI that `reproduce` fetched",
    "history.db": "index of runs, of removed ones too",
    "bisections": "states of bisections, so that they can go on",
    "hosts": "what hosts answered",
    "hub": "files of the Hugging Face hub that say what there is to download",
    "store.git": "objects of checkouts, so that only what changed travels; unused ones go after some days",
    "workspaces": "checkouts that no run uses, which the next rows start from; --all removes them",
    "agents": "the program that supervises runs",
    "logs": "logs of ci-tasks itself",
}


def describe_usage(runner: QueryRunner, directory: str) -> list[str]:
    """A line for the directory and one for each entry, the largest first. None where it does not exist."""
    answer = runner.run_queries({"du": ["sh", "-c", _DU, "du", directory]}, _TIMEOUT_S)["du"]
    sizes = parse_du(answer.out)
    if not sizes:
        return [f"the size of {directory} is not known: {_problem(answer)}"] if answer.code != 0 else []
    root = min(sizes, key=len)
    entries = sorted(((path, size) for path, size in sizes.items() if path != root), key=lambda entry: -entry[1])
    unread = "; some of it could not be read" if answer.code != 0 else ""
    return [f"still in {root}: {_text(sizes[root])}{unread}", *(_entry(path, size) for path, size in entries)]


def parse_du(out: str) -> Mapping[str, int]:
    """`du -k`'s lines as path → bytes."""
    lines = (line.split("\t", 1) for line in out.splitlines())
    return {line[1]: int(line[0]) * 1024 for line in lines if len(line) == 2 and line[0].isdigit()}


def _entry(path: str, size: int) -> str:
    name = os.path.basename(path)
    purpose = _PURPOSE.get(name, "")
    return f"  {_text(size):>9}  {name}{f': {purpose}' if purpose else ''}"


def _problem(answer: QueryAnswer) -> str:
    return " ".join(answer.err.split()) or f"du ended with {answer.code}"


def _text(size: int) -> str:
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
