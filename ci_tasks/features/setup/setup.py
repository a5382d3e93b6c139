"""The story of `setup`: ask, run CI's install steps and some rows here, and write the overrides that they needed.

Which index has wheels of torch for CPUs is asked of pip itself, in the environment that jobs get; for other packages
the install steps' own error names the index or version that helps. Everything else in the person's hosts.yaml stays,
comments too.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from ci_tasks import yaml_lines
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.cli.options import JSON, REPO, WORKFLOW, number, switch, text
from ci_tasks.cli.shared import people_read_stderr, print_json
from ci_tasks.config import PIP_DEFAULT, Config, Override
from ci_tasks.errors import UnknownName, UsageError, counted
from ci_tasks.hosts.executor import LocalExecutor
from ci_tasks.planning.actions import version_matches
from ci_tasks.planning.checkout_files import only_defines_tests
from ci_tasks.planning.pip_commands import entry, install_commands, merged, name_of, replacement, suggested_override
from ci_tasks.planning.planner import wanted_python
from ci_tasks.records import BLOCKED, CANCELLED, EXIT_CODES, PASSED, RunRecord, overall
from ci_tasks.resources import shown, users_hosts
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context, open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.run.hosts_files import open_config
from ci_tasks.run.label import execute_label
from ci_tasks.run.progress import print_results
from ci_tasks.workflow.context import UnknownValueError
from ci_tasks.workflow.model import Job, Row

_TRIES = 3  # of the install steps: each failure may show what the next one needs
# What a venv takes with torch's wheels of this kind, and how long the steps take on a usual connection. CUDA's wheels
# of torch 2.9.1 are 4.1 GB, the ones of 2.14.1 are 3.0 GB, and grow when they are unpacked.
_COSTS = {
    "cuda": "4 to 9 GB on disk (2 to 5 GB to download) and 10 to 30",
    "cpu": "1 to 2 GB on disk and 3 to 10",
    "": "1 GB on disk and 1 to 5",
}


@dataclass(frozen=True)
class SetupOptions:
    repo: str | None = REPO.field()
    workflow: str | None = WORKFLOW.field()
    label: str | None = text("the label to try (default: one without GPUs that needs few other jobs)", "LABEL").field()
    rows: int = number("number of rows to run", "rows", default=5).field()
    index: str | None = text("a package index to use instead of CI's, such as a mirror", "URL").field()
    yes: bool = switch("install, and write to ~/.config/ci-tasks/hosts.yaml, without asking").field()
    json: bool = JSON.field()


def setup(options: SetupOptions) -> int:
    """
    ci-tasks setup --repo ~/slime
    ci-tasks setup --repo ~/slime --index https://mirror.example.com/simple --yes

    Finds the Python that CI names, asks, runs CI's install steps and five rows, and writes the necessary overrides.
    Exit code 0 if the rows passed, 1 if one failed, 125 if they are blocked.
    """
    with people_read_stderr(options.json):
        result = set_up(options)
    print_json(asdict(result), when=options.json)
    return result.exit_code


@dataclass(frozen=True)
class SetupResult:
    """As `setup --json` prints it. `overrides` are entries of hosts.yaml, `file` is where they are written."""

    checkout: str
    label: str
    python: dict[str, str]
    overrides: list[str]
    file: str
    written: bool
    rows: list[dict[str, str]]
    exit_code: int


def set_up(options: SetupOptions) -> SetupResult:
    """Print what is found, tried and written."""
    source, config = open_source(options.repo, workflow=options.workflow), open_config(options.repo)
    file, index = users_hosts(), options.index
    print(source.headline, flush=True)
    by_label: dict[str, list[Row]] = {}
    for row in list_jobs(source):
        by_label.setdefault(row.label, []).append(row)
    labels = cpu_labels(source, by_label)
    label = _chosen(options.label, labels, source)
    rows = by_label[label]
    job, all_overrides = source.workflow.jobs[rows[0].job], (*config.overrides, *source.suite_overrides)
    try:
        wanted = wanted_python(source.workflow, job, rows[0], event_context(source), all_overrides)
    except UnknownValueError as error:
        hint = f"`ci-tasks run {shlex.quote(label)}` takes them: {error.hint}; or --label: {', '.join(labels)}"
        raise UnknownValueError(error.message, hint=hint) from None
    with closing(LocalExecutor(config.host("local"))) as executor:
        path, version = executor.find_python(wanted)
        torch, of_torch = find_torch(job, index, path, executor.run_queries)
    print(f"\nlabel {label}: {counted(len(rows), 'row')} without GPUs\n  Python: {version} ({path})")
    if wanted and not version_matches(wanted, version):
        by_uv = f"`uv python install {wanted}` (uv comes by `pip install uv`)"
        print(f"    CI wants {wanted}: {by_uv} or `pyenv install {wanted}` installs it")
    own = {(override.job, override.step) for override in config.overrides}
    installs = dict.fromkeys(step for step, _ in install_commands(job)) if index else ()
    of_index = [Override(job.id, step, pip_index=index) for step in installs]
    overrides = merged(each for each in (*of_index, *of_torch) if (each.job, each.step) not in own)
    costs = f"about {_COSTS[torch]} minutes{', since only CUDA wheels of torch were found' if torch == CUDA else ''}"
    records: Sequence[RunRecord] = []
    what = f"CI's install steps of {label} run here: {costs}" if any(install_commands(job)) else f"{label} runs here"
    print(f"\n{what}. Overrides are written to {shown(file)}.", flush=True)
    if _agrees(options):
        overrides, records = _try_rows(source, config, rows, overrides, options)
    installed = any(record.status not in (BLOCKED, CANCELLED) for record in records)
    status = overall([record.status for record in records]) if records else CANCELLED
    for other in (source.workflow.jobs[by_label[each][0].job] for each in labels if each != label):
        same = [each for each in overrides if each.job == job.id and _installs(other, each) == _installs(job, each)]
        overrides = [*overrides, *(replace(each, job=other.id) for each in same if (other.id, each.step) not in own)]
    entries = [entry(override) for override in overrides]
    written = installed and add_overrides(file, entries, f"for {source.path.name}")
    if installed:
        words = [f"--{name}={value}" for name in ("repo", "workflow") if (value := getattr(options, name))]
        word = "" if status == PASSED else "not every row passed, as said above; "
        print(f"\n{word}next: `{shlex.join(['ci-tasks', 'run', *words, label])}` runs all its rows")
    if status == BLOCKED:
        print("\nanother index or version does not fix the install steps; nothing was written")
    tried = [{"row": record.row, "status": record.status, "reason": record.reason} for record in records]
    python = {"wanted": wanted, "path": path, "version": version}
    return SetupResult(str(source.path), label, python, entries, str(file), written, tried, EXIT_CODES[status])


def _installs(job: Job, override: Override) -> set[tuple[tuple[str, ...], frozenset[str]]]:
    """The indexes of each install command of the job's step, with what the override replaces in it."""
    commands = [install for step, install in install_commands(job) if step == override.step]
    return {(each.indexes, frozenset(override.replace.keys() & {*each.requirements})) for each in commands}


def _agrees(options: SetupOptions) -> bool:
    """Whether the person does. Raises UsageError without a person."""
    if not options.yes and (options.json or not (os.isatty(0) and os.isatty(1))):
        raise UsageError("nothing was installed: without a terminal, setup needs --yes", hint="add `--yes`")
    return options.yes or input("Continue? [Y/n] ").strip().lower() in ("", "y", "yes")


def cpu_labels(source: CheckoutSource, by_label: Mapping[str, Sequence[Row]]) -> list[str]:
    """Labels without GPUs and containers that install something: those first that need the fewest other jobs, which
    may use what these leave, and of them the one with the most rows."""
    jobs = source.workflow.jobs
    labels = [
        label
        for label, rows in by_label.items()
        if not any(row.gpus != 0 or row.image or row.dynamic for row in rows) and install_commands(jobs[rows[0].job])
    ]
    return sorted(labels, key=lambda label: (len(jobs[by_label[label][0].job].needs), -len(by_label[label])))


def _chosen(label: str | None, labels: Sequence[str], source: CheckoutSource) -> str:
    if not labels:
        raise UsageError(f"no label of {source.workflow.path} installs packages and needs no GPU")
    if label is not None and source.label_of(label) not in labels:
        raise UnknownName("label that needs no GPU", label, labels, where=source.workflow.path)
    return source.label_of(label or labels[0])


def _try_rows(
    source: CheckoutSource, config: Config, rows: Sequence[Row], overrides: list[Override], options: SetupOptions
) -> tuple[list[Override], Sequence[RunRecord]]:
    """Run some rows with the overrides. What a failure of the install steps names is added for another try, if the
    person agrees: another index may have torch's wheels for CUDA only. No record if not."""
    # Files that run nothing in CI either would show nothing of this machine.
    names = [row.row for row in rows if row.test is None or not _runs_nothing(source.path / row.test)]
    request = RunRequest(rows[0].label, rows=tuple(names or [row.row for row in rows])[: options.rows])
    job = source.workflow.jobs[rows[0].job]
    for tries_left in reversed(range(_TRIES)):
        print("".join(f"  override: {entry(override)}\n" for override in overrides), flush=True)
        named = [replace(override, source="ci-tasks setup") for override in overrides]
        trial = replace(config, overrides=(*named, *config.overrides))
        result = execute_label(source, trial, request, ExecutionOptions())
        if result is None:
            break
        print_results(result)
        blocked = [record for record in result.runs if record.status == BLOCKED]
        more = suggested_override(blocked[0].reason, job, config.overrides) if blocked and tries_left else None
        again = merged([*overrides, more]) if more else overrides
        if more is None or again == overrides:
            return overrides, result.runs
        print(f"\nthe install steps failed; next try, {_COSTS[CUDA]} minutes if torch comes with CUDA: {entry(more)}")
        if not _agrees(options):
            break
        overrides = again
    return overrides, []


def _runs_nothing(test: Path) -> bool:
    return not test.is_file() or only_defines_tests(test.read_text(encoding="utf-8", errors="replace"))


TIMEOUT = 60.0  # seconds; each connection gets ten
_OPTIONS = ("--disable-pip-version-check", "--retries", "0", "--timeout", "10")
CPU, CUDA = "cpu", "cuda"

Ask = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, QueryAnswer]]


def find_torch(job: Job, index: str | None, python: str, ask: Ask) -> tuple[str, list[Override]]:
    """The kind of torch's wheels that a job would install, "" for none or if no index answers, and the overrides for
    them. They are from the first of `index`, CI's own index and pip's that has wheels for CPUs, else from the first
    that has any."""
    best: tuple[str, list[Override]] = ("", [])
    for step, install in install_commands(job):
        requirement = next((each for each in install.requirements if name_of(each) == "torch"), "")
        candidates: list[tuple[str | None, Sequence[str]]] = [(index, ("--index-url", index))] if index else []
        candidates += [(None, install.indexes), *([(PIP_DEFAULT, ())] if install.indexes else [])]
        for chosen, options in candidates if requirement else ():
            query = [python, "-m", "pip", "index", "versions", *_OPTIONS, *options, "torch"]
            listed = re.search(r"^Available versions: (.*)$", ask({"torch": query}, TIMEOUT)["torch"].out, re.MULTILINE)
            versions = listed[1].split(", ") if listed else []
            for_cpus = [version for version in versions if version.endswith("+cpu")]
            other = replacement(requirement, for_cpus or versions)
            override = Override(job.id, step, pip_index=chosen, replace={requirement: other} if other else {})
            overrides = [override] if chosen or other else []
            if for_cpus and (other or for_cpus == versions):
                return CPU, overrides
            if versions and not best[0]:
                best = CUDA, overrides
    return best


def add_overrides(file: Path, entries: Sequence[str], why: str) -> bool:
    """Add the overrides to the user's file, below those that end it; print them if that changes something else. Returns
    whether it did."""
    if not entries:
        print("\nno override was needed: nothing to write")
        return False
    items = "".join(f"  {line}\n" for line in [f"# by `ci-tasks setup`: {why}", *(f"- {entry}" for entry in entries)])
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    print(f"\noverrides:\n{items}", flush=True)
    for block in (f"overrides:\n{items}", items):
        after = before + ("\n" if before and not before.endswith("\n") else "") + block
        if _adds_only(before, after, items):
            write(file, after)
            print(f"added to {file}")
            return True
    print(f"{file} has another format: add these lines there, below its `overrides:` if it has some")
    return False


def write(file: Path, text: str) -> None:
    """The file appears whole, with the mode that it had; of a link, what it leads to."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = file.stat().st_mode if file.exists() else 0o644
    replace_file(str(file), text.encode())
    file.chmod(mode)


def _adds_only(before: str, after: str, items: str) -> bool:
    """Whether the file keeps what it had, and gets these overrides as its last."""
    try:
        old, new, added = (yaml_lines.load(text) or {} for text in (before, after, items))
        return bool({**old, "overrides": [*(old.get("overrides") or ()), *added]} == new)
    except (yaml_lines.YamlError, AttributeError, TypeError):
        return False
