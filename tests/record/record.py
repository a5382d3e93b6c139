"""What is planned for real workflows, as hashes that must not change unless a change is meant to: `nox -s record`.

A file NAME.txt beside this module is the record of one repository. Its first line lists revisions. Every other line is

    KEY VALUE NUMBERS

KEY is the hash of workflow, label and row. NUMBERS say at which of the revisions the line holds ("0-3,7"). VALUE is a
hash for each of PARTS; of a label's own line that of its list of rows, as `jobs --json` has it. "refused" is a
workflow that `jobs` refuses, or a label that `plan` does; if it asks for a value, there are rows with a given one too.
So no text of the repository is kept.

The hashes are made of what `ci-tasks plan` writes for a docker host with 8 GPUs (`plan --json`, run.sh), without what
depends on the machine: paths, ids and commits. Only the container adapter is called as a function.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
PARTS = ("steps", "env", "docker", "gpus", "deviations")
LISTED = ("label", "job", "trigger", "row", "test", "args", "gpus", "image", "env", "runner", "timeout_minutes")
REFUSED = "refused"
WORKFLOWS = ".github/workflows"
PR_TEST = f"{WORKFLOWS}/pr-test.yml"
# name → the repository on GitHub, which expressions may ask for
REPOSITORIES = {
    "slime": "THUDM/slime",
    "verl": "verl-project/verl",
    "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "tiny-slime": "owner/tiny-slime",
}
HOSTS = """hosts:
  record: {kind: local, runtime: docker, gpus: 8, mounts: {/mnt/nvme0n1/slime_ci: /data/slime_ci}}
"""
_IDENTITY = ("-c", "user.name=record", "-c", "user.email=record@example.com")
PYTHON = ("/usr/bin/python3", "3.11.0")
PROCESSES = 2

Rows = dict[str, str]  # "workflow label row" → value; of a file: KEY → value
Record = dict[str, Rows]  # by revision


def short_hash(value: Any, digits: int = 6) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


def key_of(name: str) -> str:
    return short_hash(name, 8)


# -- one revision ------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A workflow at a revision, which `commit` stands for. A template beside the workflow that is made of it is only
    listed, not planned."""

    checkout: str
    revision: str
    commit: str
    workflow: str
    plans: bool


def rows_of(task: Task) -> Rows:
    """Every label and row of the workflow, with its value."""
    workflow, where = task.workflow, ["--repo", task.checkout, "--rev", task.commit, "--workflow", task.workflow]
    listed, _ = _command("jobs", "--json", *where)
    if not listed:
        return {workflow: REFUSED}
    labels: dict[str, list[Any]] = {}
    for row in json.loads(listed.replace(task.commit, "COMMIT")):
        labels.setdefault(row["label"], []).append([row[field] for field in LISTED])
    found = {f"{workflow} {label}": short_hash(rows) for label, rows in labels.items()}
    for label in labels if task.plans else ():
        with tempfile.TemporaryDirectory() as scratch:
            # Changed tests are those of the commit.
            command = ["plan", label, "--host", "record", "--json", "--base", f"{task.commit}^", *where]
            planned, error = _command(*command, "--out", f"{scratch}/out")
            if not planned:
                found[f"{workflow} {label} *"] = REFUSED
            given: list[str] = []
            while not planned and (asked := [option for option in asked_for(error) if option not in given]):
                given += asked
                planned, error = _command(*command, "--out", f"{scratch}/out", *given)
            for plan in json.loads(planned or "[]"):
                found[f"{workflow} {label} {plan['row']}"] = value_of(plan, scratch)
    return found


def asked_for(error: str) -> list[str]:
    """Options that give what the error says is not known."""
    unknown = re.search(r"needs (.*), which only GitHub knows", error)
    names = dict.fromkeys(re.findall(r"\b(needs|inputs|vars)\.([\w.-]+)", unknown[1] if unknown else ""))
    flags = {"needs": "--output", "inputs": "--input", "vars": "--var"}
    matrix = '{"include": [{"script": "given", "runner": "given"}]}'  # as Megatron-Bridge's jobs write them
    given = {name: matrix if ".matrix" in name else "given" for _, name in names}
    options = [f"{flags[of]}={name.replace('.outputs.', '.')}={given[name]}" for of, name in names]
    return options + (["--gpus=8"] if "--gpus N" in error else [])


def _command(*words: str) -> tuple[str, str]:
    """What `ci-tasks` prints, and its error where it refuses."""
    from ci_tasks.cli.program import run
    from ci_tasks.errors import EXIT_USAGE

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = run(["ci-tasks", *words])
    if code not in (0, EXIT_USAGE):  # a problem of this machine is no refusal
        raise RuntimeError(f"ci-tasks {shlex.join(words)}: exit code {code}: {error.getvalue()}")
    return (out.getvalue(), "") if code == 0 else ("", error.getvalue())


def value_of(plan: Mapping[str, Any], scratch: str) -> str:
    """The hashes of a planned row."""
    scripts = [f"{directory}/run.sh" for directory in (plan["setup"], plan["run_dir"]) if directory]
    texts = [Path(script).read_text(encoding="utf-8") for script in scripts]
    locks = plan["gpu_locks"] or {}
    parts = {
        "steps": [steps(text) for text in texts],
        "env": [[exports(text) for text in texts], [plan["host_env"], plan["container"]["env"], plan["secrets"]]],
        "docker": [plan["image"], [docker_argv(text, plan["run_dir"]) for text in texts]],
        # 1: the nodes of a row, when it was recorded.
        "gpus": [plan["gpus"], locks.get("count"), locks.get("by"), plan["exclusive"], 1],
        "deviations": [[item[name] for name in ("what", "ci", "here", "why")] for item in plan["deviations"]],
    }
    return " ".join(short_hash(neutral(json.dumps(parts[part]), plan, scratch)) for part in PARTS)


def neutral(text: str, plan: Mapping[str, Any], scratch: str) -> str:
    """The text without what differs from one machine, or one commit, to the next."""
    checkout, setup = plan["checkout"], plan["setup"] or "no setup"
    for value, name in (
        (plan["run_dir"], "RUN"),
        (setup, "SETUP"),
        (scratch, "SCRATCH"),
        (os.environ["CI_TASKS_HOME"], "HOME"),
        (checkout["path"], "CHECKOUT"),
        (checkout["tree"], "TREE"),
    ):
        text = text.replace(value, name)
    text = re.sub(rf"{re.escape(plan['id'])}(-[0-9a-f]{{6}}\b)?", "ID", text)
    return re.sub(rf"{checkout['commit'][:7]}[0-9a-f]*", "COMMIT", text)


_WORD = r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s'\"\\;&|])+"
_EXPORT = re.compile(rf"^ *(?:export (?P<name>\w+)=|_odd\+=\()(?P<value>{_WORD})", re.M | re.S)
_STEP = re.compile(
    r"^if begin (?P<begin>[^\n]*); then\n(?:  building\n)?  \(\n    cd -- (?P<directory>[^\n]*) \|\| exit 1\n"
    r"(?P<exports>.*?)    script (?P<words>[^\n]*) << '(?P<mark>END_OF_STEP_\d+_*)'\n(?P<text>.*?)^(?P=mark)\n"
    r"  \)\n  (?P<end>[^\n]*)\nfi$",
    re.M | re.S,
)
_OF_THE_RUN = ("CI_TASKS_RUN_DIR", "GITHUB_WORKSPACE", "GITHUB_SHA", "VIRTUAL_ENV")
_RUN = re.compile(rf"\bdocker (run(?:[ \t]+{_WORD})+)", re.S)


def steps(script: str) -> list[list[str]]:
    """Name, conditions, directory, interpreter, text and end of each step of a run.sh, in order."""
    found = [
        [*shlex.split(step["begin"])[:3], step["directory"], step["words"], step["text"], step["end"]]
        for step in _STEP.finditer(script)
    ]
    if len(found) != len(re.findall(r"^if begin ", script, re.M)) or not found:
        raise RuntimeError("a step of run.sh is not as tests/record reads it")
    return found


def exports(script: str) -> list[list[tuple[str, str]]]:
    """The variables of the job, and of each step, in order."""
    head = script.partition("\nif begin ")[0]
    own = [match for match in _EXPORT.finditer(head) if not match[0].startswith(" ")]
    of_steps = [_EXPORT.finditer(step["exports"]) for step in _STEP.finditer(script)]
    return [
        [(match["name"] or "", match["value"]) for match in matches if match["name"] not in _OF_THE_RUN]
        for matches in (own, *of_steps)
    ]


def docker_argv(script: str, run_dir: str) -> list[list[str] | str]:
    """What each `docker run` of the script becomes on the host."""
    from ci_tasks.agent.docker_argv import DockerArgvError, parse_run, render
    from ci_tasks.agent.docker_rewrite import rewrite
    from ci_tasks.agent.run_directory import RunDir, read_plan

    rules = read_plan(RunDir(run_dir)).container
    assert rules is not None
    found: list[list[str] | str] = []
    for match in _RUN.finditer(script.replace("\\\n", " ")):
        try:
            found.append(render(rewrite(parse_run(shlex.split(match[1])), rules)[0]))
        except (ValueError, DockerArgvError):
            found.append(match[1])
    return found


# -- all revisions -----------------------------------------------------------------------------------------------------


def compute(name: str, directory: Path, revisions: Sequence[str] = ()) -> Record:
    """The record of a clone, at `revisions` or at those that a new record has."""
    with tempfile.TemporaryDirectory(prefix="ci-tasks-record-") as scratch:
        checkout = _checkout(name, directory, Path(scratch))
        revisions = revisions or _revisions(name, checkout)
        tasks = [task for revision in revisions for task in _tasks(name, checkout, revision)]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(PROCESSES, spawn, initializer=_enter, initargs=(scratch,)) as pool:
            record: Record = {revision: {} for revision in revisions}
            for number, (task, rows) in enumerate(zip(tasks, pool.map(rows_of, tasks), strict=True), 1):
                record[task.revision] |= rows
                print(f"\r{name}: {number} of {len(tasks)} workflows", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return record


def _enter(scratch: str) -> None:
    """Make this process one on a machine of which nothing is known."""
    from ci_tasks.agent.records import QueryAnswer
    from ci_tasks.config import HostSpec
    from ci_tasks.hosts import executor, queries
    from ci_tasks.hosts.connection import HostCache

    home = tempfile.mkdtemp(dir=scratch)
    Path(home, "hosts.yaml").write_text(HOSTS)
    path = os.environ["PATH"]
    os.environ.clear()
    os.environ.update(PATH=path, HOME=home, CI_TASKS_HOME=f"{home}/runs", CI_TASKS_HOSTS=f"{home}/hosts.yaml")
    os.chdir(home)
    patch.object(queries, "find_python", return_value=PYTHON).start()
    # For speed: no agent is started, the workspace of a row, which nothing here reads, is not made, and all labels have
    # one snapshot.
    agent = SimpleNamespace(cache=HostCache(pruned_at=1e12), spec=HostSpec("record"), is_up=True, close=lambda: None)
    agent.run_queries = lambda asked, _: dict.fromkeys(asked, QueryAnswer(0))
    patch.object(executor, "open_connection", return_value=agent).start()
    make = executor.LocalExecutor._make
    patch.object(executor.LocalExecutor, "_make", lambda self, run, plan, _: make(self, run, plan, False)).start()
    patch.object(executor, "take_host_snapshot", lru_cache(1)(executor.take_host_snapshot)).start()


def _checkout(name: str, directory: Path, scratch: Path) -> Path:
    """A clone whose origin is the repository's, with no edit in it; of a sample, a repository of its files."""
    checkout = scratch / name
    if directory.parent == EXAMPLES or not (directory / ".git").exists():
        shutil.copytree(directory, checkout, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        _git(checkout, "init", "--quiet", "--initial-branch=main")
        _git(checkout, "add", "--all")
        for message in ("before", "sample"):
            _git(checkout, *_IDENTITY, "commit", "--quiet", "--allow-empty", f"--message={message}")
        _git(checkout, "update-ref", "refs/remotes/origin/main", "HEAD")
        _git(checkout, "remote", "add", "origin", f"https://github.com/{REPOSITORIES[name]}")
    else:
        _git(scratch, "clone", "--quiet", "--shared", "--no-checkout", str(directory), str(checkout))
        _git(checkout, "remote", "set-url", "origin", f"https://github.com/{REPOSITORIES[name]}")
    return checkout


def _revisions(name: str, checkout: Path) -> list[str]:
    if name == "slime":
        return _git(checkout, "log", "--follow", "--format=%H", "--", PR_TEST).split()
    return ["HEAD"] if name.startswith("tiny-") else _git(checkout, "rev-parse", "HEAD").split()


def _tasks(name: str, checkout: Path, revision: str) -> list[Task]:
    files = _git(checkout, "ls-tree", "--name-only", revision, f"{WORKFLOWS}/").split()
    if name.endswith("slime"):
        files = [file for file in files if file.removesuffix(".j2") == PR_TEST]
    files = [file for file in files if file.endswith((".yml", ".yaml", ".j2"))]
    templates, commit = [f"{file}.j2" for file in files], _git(checkout, "rev-parse", revision).strip()
    return [Task(str(checkout), revision, commit, file, file not in templates) for file in files]


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout


# -- files and differences ---------------------------------------------------------------------------------------------


def write(path: Path, record: Record) -> None:
    numbers: dict[str, list[int]] = {}
    for number, rows in enumerate(record.values()):
        for name, value in rows.items():
            numbers.setdefault(f"{key_of(name)} {value}", []).append(number)
    lines = [" ".join(["revisions", *record]), *sorted(f"{line} {_ranges(found)}" for line, found in numbers.items())]
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> Record:
    first, *lines = path.read_text().splitlines()
    revisions = first.split()[1:]
    record: Record = {revision: {} for revision in revisions}
    for line in lines:
        key, *value, ranges = line.split()
        for first, _, last in (item.partition("-") for item in ranges.split(",")):
            for revision in revisions[int(first) : int(last or first) + 1]:
                record[revision][key] = " ".join(value)
    return record


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] → "0-2,5"."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in zip(starts, ends, strict=True))


def differences(recorded: Record, computed: Record) -> list[str]:
    """What is not as recorded, one line for each row and kind of change, with the revisions."""
    changes: dict[str, list[str]] = {}
    for revision, rows in computed.items():
        before, names = recorded.get(revision, {}), {key_of(name): name for name in rows}
        for key in {**before, **names}:
            old, new = before.get(key, "missing"), rows.get(names.get(key, ""), "missing")
            if old != new:
                changes.setdefault(f"{names.get(key, key)}: {_change(old, new)}", []).append(revision[:10])
    return [f"{change}  ({_some(revisions)})" for change, revisions in changes.items()]


def _change(old: str, new: str) -> str:
    before, after = old.split(), new.split()
    if len(before) == len(after) == len(PARTS):
        return ", ".join(part for part, one, other in zip(PARTS, before, after, strict=True) if one != other)
    return f"{_kind(before)} → {_kind(after)}" if _kind(before) != _kind(after) else "list of rows"


def _kind(value: Sequence[str]) -> str:
    return value[0] if value[0] in (REFUSED, "missing") else "planned" if len(value) > 1 else "listed"


def _some(revisions: Sequence[str]) -> str:
    return " ".join(revisions[:3]) if len(revisions) < 4 else f"{len(revisions)} revisions, {revisions[-1]} and later"


def name_of(directory: Path) -> str:
    """Which repository a clone is of, by its folder."""
    if directory.name in REPOSITORIES:
        return directory.name
    raise SystemExit(f"{directory} is not called as a repository with a record: {', '.join(REPOSITORIES)}")


def main(words: Sequence[str]) -> int:
    directories = [Path(word).resolve() for word in words if word != "--write"]
    if not directories:
        raise SystemExit(f"usage: nox -s record -- [--write] DIR…   (clones of {', '.join(REPOSITORIES)})")
    found = 0
    for directory in directories:
        name = name_of(directory)
        path = HERE / f"{name}.txt"
        if "--write" in words:
            write(path, compute(name, directory))
            continue
        recorded = read(path)
        lines = differences(recorded, compute(name, directory, list(recorded)))
        found += len(lines)
        print("\n".join([f"{name}: {len(lines)} differences", *lines]))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
