"""`clean`: what runs have left on a host, because a person went away, something was killed, or it was asked to stay.

A run that is not over is never touched. Runs that were not fetched yet or were kept for `shell` stay, unless
`everything` is set. Other people's runs go once they ended long ago. With `everything`, and if no run stays, nothing of
ours is left on another host; on this machine the results stay.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from ci_tasks.agent.containers import remove_tree
from ci_tasks.agent.protocol import Request, RunSummary
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status
from ci_tasks.agent.slurm import end_and_clean, remove_run
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import Blocked, printable
from ci_tasks.hosts.connection import ReconnectingConnection
from ci_tasks.hosts.executor import OLD_DAYS, SETUP_PARTS, remove_setup
from ci_tasks.report.table import size
from ci_tasks.results import store
from ci_tasks.results.load import UnreadableRun, load_record
from ci_tasks.results.store import read_state_if_readable

_DAY = 24 * 3600.0
_SECONDS = 120.0  # for a program there
# What we make on a host, beside runs; git's stores, the agents, and what old versions made.
_PARTS = "agents store.git store-sha256.git workspaces environments simulated-gpus locks tools sync"
_SIZES = 'cd -- "$1" && du -ahd1 | sort -rh'
# A line for each container and image of a run, with the run's directory, which is their label.
_OF_RUNS = """label=ci-tasks.dir
container="{{index .Config.Labels \\"$label\\"}} container {{.Name}}, {{.SizeRw}} bytes"
image="{{index .Config.Labels \\"$label\\"}} image {{index .RepoTags 0}}, {{.Size}} bytes"
for id in $("$1" ps --all --quiet --filter label=$label); do
  "$1" inspect --type container --size --format "$container" $id
done
for id in $("$1" images --quiet --filter label=$label); do "$1" image inspect --format "$image" $id; done"""
_REMOVE = """cd -- "$1" && shift || exit
{ chmod -R u+w -- "$@"; rm -rf -- "$@"; rmdir -- runs "$PWD"; } 2> /dev/null
ls -A"""


@dataclass(frozen=True)
class CleanedRun:
    """What became of a run, in a sentence, and what is `left` although it should be gone.
    An entry of `clean --json`."""

    text: str
    left: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        return [self.text, *(f"  left: {line}" for line in self.left)]


def clean(config: Config, host: str, *, days: float | None, everything: bool) -> list[CleanedRun]:
    """Print what is removed and what stays, with the reason, and return it."""
    from ci_tasks.hosts.mux import end
    from ci_tasks.hosts.runs import open_connection

    spec, cleaned, old = config.host(host), list[CleanedRun](), OLD_DAYS if days is None else days
    is_here = spec.kind == "local"
    with closing(open_connection(spec)) as connection:
        _print(_containers_and_images(connection, spec))
        for run in _clean_here(connection, days, everything) if is_here else _clean_there(connection, old, everything):
            _print(run.lines)
            cleaned.append(run)
        print("nothing to remove; " * (not cleaned) + "removing packages and objects that no run uses", flush=True)
        pruned = connection.request(Request("prune", days=OLD_DAYS, all_environments=everything))
        _print([*pruned.lines, *(f"  left: {each}" for each in pruned.left)])
        cleaned += [CleanedRun("packages that runs share", pruned.left)] if pruned.left else []
        runs = connection.request(Request("runs")).runs
        is_used = any(_is_active(store.home() / "runs" / batch) for batch in store.batches())
        if everything and not is_used and not any(run.alive or not is_here for run in runs):
            cleaned.append(_remove_the_rest(connection, spec))
            _print(cleaned[-1].lines)
        home = connection.hello().home
        if sizes := _answer(connection, _SIZES, home):
            older = "; --days N removes old results, --all what runs share" if is_here and not everything else ""
            _print([f"still there, in {home}{older}:", *(f"  {line}" for line in sizes)])
    for kept in end(spec.address):
        print(f"the connection to {kept.address} that process {kept.pid} kept: closed")
    return cleaned


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _answer(connection: ReconnectingConnection, script: str, *words: str) -> list[str]:
    """The lines that a shell script there prints."""
    answer = connection.run_queries({"sh": ["sh", "-c", script, "sh", *words]}, _SECONDS)["sh"]
    return [printable(line) for line in answer.out.splitlines()]


def _containers_and_images(connection: ReconnectingConnection, spec: HostSpec) -> list[str]:
    """The ones of runs in this host's home, with their sizes, below a heading if there are any."""
    if spec.runtime not in ("docker", "podman"):
        return []
    pairs = (line.partition(" ") for line in _answer(connection, _OF_RUNS, spec.runtime))
    home = f"{connection.hello().home}/runs/"
    ours = "\n".join(what.replace(" /", " ", 1) for directory, _, what in pairs if directory.startswith(home))
    shown = re.sub(r"(\d+) bytes$", lambda count: size(int(count[1])), ours, flags=re.MULTILINE).splitlines()
    return ["containers and images of runs:", *(f"  {each}" for each in shown)] if shown else []


def _remove_the_rest(connection: ReconnectingConnection, spec: HostSpec) -> CleanedRun:
    """No run needs it any more: agents, code and packages, on another host our whole directory."""
    home = connection.hello().home
    others = _answer(connection, _REMOVE, home, *_PARTS.split())
    left = [line.strip() for line in _containers_and_images(connection, spec)[1:]]
    left += [f"{home}/{name}" for name in others] if spec.kind != "local" else []
    return CleanedRun(f"agents, code and packages in {home}: removed", tuple(left))


# -- on another host ---------------------------------------------------------------------------------------------------


def _clean_there(connection: ReconnectingConnection, days: float, everything: bool) -> Iterator[CleanedRun]:
    """Rows before the install steps that they use, and the newest first: a retry's container needs the image that was
    made of the container before it."""
    staying: set[str] = set()
    runs = connection.request(Request("runs")).runs
    for run in sorted(runs, key=lambda run: (run.is_row, run.ended_at or 0, run.dir), reverse=True):
        age = None if run.ended_at is None else time.time() - run.ended_at
        why = _stays_there(run, age is not None and age > days * _DAY, everything)
        if not run.is_row and run.batch in staying:
            why = "its rows use it"
        id = run.id.replace(run.batch, _batch_here(run), 1)
        if why:
            staying.add(run.batch)
            yield CleanedRun(f"{id}: stays, {why}")
        else:
            yield CleanedRun(f"{id}: removed", connection.request(Request("clear", run.dir)).left)


def _stays_there(run: RunSummary, is_old: bool, everything: bool) -> str:
    """Why a run on another host is not to be removed; empty if it is."""
    is_ours = run.batch.endswith(f"-{store.client_id()}")
    is_active = _is_active(store.home() / "runs" / _batch_here(run))
    # Our install steps that no command waits for any more are removed, even if they run.
    if run.alive and (run.is_row or not is_ours or is_active):
        return "it runs"
    if not is_ours:
        return "" if is_old else "it belongs to another user and is younger than --days"
    if run.kept and not everything:
        return "it was kept for `shell`; --all removes it"
    if not run.is_row and is_active:
        return "its command is still running"
    if run.is_row and not _is_fetched(run) and not everything:
        why = "it was only planned" if run.state == "planned" else "its results are not fetched: `fetch` it first"
        return f"{why}; --all removes it"
    return ""


def _batch_here(run: RunSummary) -> str:
    """As the batch is called here, if this client started it."""
    return run.batch.removesuffix(f"-{store.client_id()}")


def _is_fetched(run: RunSummary) -> bool:
    here = store.home() / "runs" / _batch_here(run) / run.number
    remote = read_remote(RunDir(str(here)))
    return not here.exists() or (remote is not None and remote.complete)


# -- on this machine ---------------------------------------------------------------------------------------------------


def _clean_here(connection: ReconnectingConnection, days: float | None, everything: bool) -> Iterator[CleanedRun]:
    with suppress(Blocked):  # a Python that was built without SQLite
        from ci_tasks.results import history

        history.update()  # what is removed stays in it
    yield from _clean_killed_commands()
    runs = connection.request(Request("runs")).runs
    in_use = {run.batch for run in runs if run.alive or (run.kept and not everything) or _is_active(run.batch_dir)}
    for info in sorted(runs, key=lambda info: (info.ended_at or 0, info.dir), reverse=True):
        try:
            text, left = _cleaned_here(info, info.batch in in_use, days, everything)
        except (OSError, ValueError) as problem:  # a job may have changed its files: what it left is not known
            text, left = f"stays, {problem}", [f"{info.dir}: remove it by hand"]
        if text:
            yield CleanedRun(f"{info.id}: {text}", tuple(left))
        batch = Path(info.batch_dir)
        # Its journal and similar files are of no use any more.
        is_empty = not (store.rows_of(batch.name) or store.setup_dirs(batch.name))
        if text == "removed" and batch.parent == store.home() / "runs" and is_empty:
            shutil.rmtree(batch, ignore_errors=True)


def _cleaned_here(info: RunSummary, is_used: bool, days: float | None, everything: bool) -> tuple[str, Sequence[str]]:
    """What becomes of a run, "" for one that has nothing to remove; and what is left although it should be gone."""
    run = RunDir(info.dir)
    read_plan(run)
    is_planned = info.state == "planned" and not is_used  # no command will start it
    since = os.path.getmtime(run.plan) if is_planned else info.ended_at
    is_old = days is not None and since is not None and time.time() - since > days * _DAY
    if os.path.lexists(run.remote):
        # A copy of what is on a host. Its files are the host's word, which names nothing else that is to go here.
        return ("removed", remove_tree(run.path, None, "none", {})) if is_old else ("", ())
    if info.alive:
        return "stays, it runs", ()
    if is_old and (info.is_row or not is_used) and (everything or not info.kept):
        return "removed", remove_run(run.path)
    if not info.is_row:
        has_venv = any(os.path.lexists(os.path.join(run.path, name)) for name in SETUP_PARTS)
        if not is_used and (everything or info.state != "planned") and has_venv:
            return "its venv was removed", [*end_and_clean(run.path), *remove_setup(run.path)]
    elif info.kept and not everything:
        return "stays, it was kept for `shell`; --all removes it", ()
    elif info.state != "planned" and (
        info.kept or os.path.lexists(run.workspace) or not (status := read_status(run)).has_ended or status.left
    ):
        with suppress(OSError, UnreadableRun):
            load_record(run)  # so that a run whose runner was killed has its record
        return "its leftovers were removed", end_and_clean(run.path)
    return "", ()


def _clean_killed_commands() -> Iterator[CleanedRun]:
    """Commands that were killed before one of their rows began, with everything that they left here."""
    for batch in store.batches():
        path = store.home() / "runs" / batch
        state = read_state_if_readable(path)
        if state is not None and state.was_killed and not store.has_begun(batch):
            left = [line for run in store.setup_dirs(batch) if not read_remote(run) for line in end_and_clean(run.path)]
            left += remove_tree(str(path), None, "none", {})
            yield CleanedRun(f"{batch}: removed, {state.why_not_started}", tuple(left))


def _is_active(batch_dir: str | Path) -> bool:
    state = read_state_if_readable(batch_dir)
    return state is not None and state.is_active
