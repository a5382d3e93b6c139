"""`triage` and `reproduce`: from a failed job's log to what failed, and whether it fails here as well."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import UsageError
from ci_tasks.flows.ci_log import CiLog
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.prepare import Request
from ci_tasks.flows.repeating import perform_repeatedly
from ci_tasks.flows.running import perform
from ci_tasks.flows.source import Source, open_source, origin, situation
from ci_tasks.judge import reproduction
from ci_tasks.judge.repeats import Goal
from ci_tasks.judge.reproduction import BLOCKED
from ci_tasks.judge.triage.result import PASS
from ci_tasks.model import CANCELLED, EXIT_CODES, VACUOUS, Row
from ci_tasks.report import reproduction as report
from ci_tasks.report import table
from ci_tasks.report.triage import describe
from ci_tasks.runs import store
from ci_tasks.suites import slime
from ci_tasks.sync.fetched import fetched, has
from ci_tasks.workflow import rows
from ci_tasks.workflow.cilog import learn
from ci_tasks.workflow.cilog.candidates import candidates, situation_of
from ci_tasks.workflow.cilog.identify import identify
from ci_tasks.workflow.cilog.recovered import Recovered
from ci_tasks.workflow.naming import label_of


@dataclass(frozen=True)
class Ask:
    """What a person adds to a log: where and how often to run, and what the log does not say. `on_my_tree` runs the
    working tree on CI's inputs."""

    host: str = "local"
    repo: str | None = None
    rev: str | None = None
    workflow: str | None = None
    label: str | None = None
    only: str | None = None
    image: str | None = None
    on_my_tree: bool = False
    repeats: int = 1
    keep: bool = False


def show_triage(log: CiLog) -> int:
    """Print what failed and why."""
    print("\n".join(describe(log.triage.public())))
    return 0


def reproduce(log: CiLog, config: Config, ask: Ask) -> int:
    """Run the job of a log again, and say whether it is the same failure. Returns the exit code of the verdict."""
    if log.triage.verdict == PASS:
        raise UsageError(f"{log.name!r} shows no failure", hint="give the log of a job that failed")
    config.host(ask.host)
    source, found, row = _the_same_job(log.recovered, ask)
    print("\n".join([*report.recovered(found, row.row, row.label), "", "CI's failure:"]))
    print("\n".join(f"  {line}".rstrip() for line in describe(log.triage.public())), "", sep="\n", flush=True)
    base = found.merge_base if row.label == slime.CHANGED and not ask.on_my_tree else None
    image = ask.image or _pinned(found)
    request = Request(row.label, None, ask.host, base or None, keep=ask.keep, image=image, rows=(row.row,))
    print(source.headline, flush=True)
    if ask.repeats > 1:
        done = perform_repeatedly(source, config, request, Goal(ask.repeats))
        if done.interrupted or not done.records:
            return done.exit_code
        return _conclude(log, found, [record for record, _ in done.records], [path for _, path in done.records])
    once = perform(source, config, request)
    if once is None:
        return EXIT_CODES[VACUOUS]
    if once.records[0]["status"] == CANCELLED:
        return once.exit_code
    return _conclude(log, found, once.records, once.logs)


def _conclude(log: CiLog, found: Recovered, records: Sequence[Mapping[str, Any]], logs: Sequence[str]) -> int:
    verdict = reproduction.compare(log.triage, records)
    at = next(number for number, record in enumerate(records) if record is verdict.record)
    shown = table.results([verdict.record], [logs[at]])
    differences = table.deviations([_of_same_code(verdict.record, found)])
    print("\n".join(["", *shown, "", *report.comparison(found, verdict.record), "", *differences, ""]))
    print(f"{verdict.word}: {table.one_line(verdict.why)}", flush=True)
    if verdict.word == BLOCKED:
        print("nothing was shown about the code: mend the environment, or name another --host")
    return verdict.exit_code


def _of_same_code(record: Mapping[str, Any], found: Recovered) -> Mapping[str, Any]:
    """The record, without the difference in code where there is none: CI's own commit ran."""
    checkout = record["checkout"] or {}
    if not found.commit or checkout.get("commit") != found.commit or checkout.get("dirty"):
        return record
    return {**record, "deviations": [item for item in record["deviations"] if item["what"] != "code"]}


def _the_same_job(recovered: Recovered, ask: Ask) -> tuple[Source, Recovered, Row]:
    """The checkout at the job's commit, or the working tree, and the row that the log is of."""
    mine = open_source(ask.repo, None, ask.workflow or recovered.workflow or None)
    recovered = _learnt(recovered, mine)
    commit = ask.rev or recovered.commit
    if not commit and not ask.on_my_tree:
        raise UsageError(
            "the log does not say which commit CI ran", hint="--rev REV names it, --on-my-tree runs your working tree"
        )
    known = bool(commit) and (not ask.on_my_tree or has(mine.path, commit))
    source = _at(mine, commit, recovered, ask) if known else mine
    row = _row(source, recovered, ask)
    return (mine if ask.on_my_tree else source), recovered, row


def _learnt(recovered: Recovered, source: Source) -> Recovered:
    """The commit may stand in a variable of the job alone."""
    for job in source.workflow.jobs.values():
        if recovered.commit:
            break
        recovered = learn.from_environment(recovered, source.workflow, job)
    return recovered


def _at(mine: Source, commit: str, recovered: Recovered, ask: Ask) -> Source:
    """The checkout at `commit`, which is fetched beside it where it is not in it."""
    path = mine.path
    if not has(path, commit):
        url = origin(path) or f"https://github.com/{recovered.repository}"
        print(f"fetching commit {commit[:12]} from {url}", flush=True)
        name = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        path = fetched(path, commit, store.home() / "commits" / name, url=url, ref=recovered.ref)
    found = open_source(str(path), commit, ask.workflow or recovered.workflow or None)
    return replace(found, how=mine.how, sample=mine.sample)


def _row(source: Source, recovered: Recovered, ask: Ask) -> Row:
    """The row that the log is of. Raises UsageError where none or several fit, naming them."""
    known = situation_of(recovered, situation(source, secrets=source.workflow.secrets))
    jobs = source.workflow.jobs.values() if not ask.label else [slime.job_of(source.workflow, ask.label)]
    found = []
    for job in jobs:
        if not rows.missing_outputs(job, known):
            found.append((job, rows.rows(source.workflow, job, known, slime.describe)))
        elif ask.label or recovered.job_name.startswith(job.id):  # another job's output says which rows it has
            decided = find_rows(source, label_of(job.id), known, recovered.merge_base or None)
            found.append((decided.job, decided.rows))
    if ask.only:
        where = ask.label or "any label"
        chosen = slime.select([row for _, several in found for row in several], ask.only, where)
        found = [(job, [row for row in several if row in chosen]) for job, several in found]
    every = [row for _, several in found for row in several]
    if (ask.label or ask.only) and len(every) == 1:
        return every[0]
    known_rows = [one for job, several in found for one in candidates(source.workflow, job, several, known)]
    which = identify(recovered, known_rows)
    if which.row is not None:
        return which.row
    near = "".join(f"\n  --label {row.label} --only '{row.row}'" for row in which.near)
    raise UsageError(
        f"the log does not say which row of {source.workflow.place} it is of: {which.why}",
        hint=f"name it:{near}" if near else "--label LABEL --only ROW names it; `jobs` lists them",
    )


def _pinned(found: Recovered) -> str | None:
    """The image that CI ran, by its digest, so that a tag that moved makes no difference."""
    name = found.image.partition("@")[0]
    if not (name and found.digest):
        return None
    head, colon, tag = name.rpartition(":")
    bare = head if colon and "/" not in tag else name
    return f"{bare}@{found.digest}"
