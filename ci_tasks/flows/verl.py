"""`verl`: the levels of a Megatron-Bridge change, from two working trees to the summary for its pull request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.flows import running
from ci_tasks.flows.prepare import Request
from ci_tasks.flows.running import Performed
from ci_tasks.flows.source import Source
from ci_tasks.judge.verl.collect import metrics_of, read_run
from ci_tasks.judge.verl.criteria import judge
from ci_tasks.judge.verl.training import RunEnd
from ci_tasks.model import CANCELLED, EXIT_CODES, VACUOUS, Checkout
from ci_tasks.report import verl as report
from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.suites.verl import wrapper
from ci_tasks.suites.verl.job import LABEL, workflow
from ci_tasks.suites.verl.levels import Training, Wish, trainings
from ci_tasks.suites.verl.script import BRIDGE, VERL
from ci_tasks.suites.verl.summary import BLOCKED, FAIL, PASS, Provenance, Summary
from ci_tasks.sync.pair import side_by_side

_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
_BRIDGE_HAS = "src/megatron/bridge"
_PIECE = 1 << 18
_CODES = {PASS: 0, FAIL: 1, BLOCKED: 125}


@dataclass(frozen=True)
class Ask:
    """Where a wish is to be fulfilled. `data` is a directory of the host with data and models, which the container sees
    under the same path; `baseline` is the log of another run of level 5; `command` repeats this one."""

    wish: Wish
    bridge: Path
    verl: Path
    host: str
    command: str
    image: str | None = None
    data: str | None = None
    baseline: Path | None = None
    keep: bool = False


@dataclass(frozen=True)
class Pair:
    """Both trees as they are now, copied side by side, and the trainings that they will run."""

    source: Source
    bridge: Checkout
    verl: Checkout
    trainings: Sequence[Training]


def plan(ask: Ask, config: Config) -> list[dict[str, Any]]:
    """Write the run directory that the level would execute. Returns its plan."""
    with _pair(ask, config) as pair:
        return running.plan(pair.source, config, _request(ask))


def run(ask: Ask, config: Config, form: str = "text") -> int:
    """Run the asked level and those that it needs, and end with the summary, `form` being text, markdown or json.
    Returns the exit code of its result."""
    if ask.baseline is not None and not ask.baseline.is_file():
        raise UsageError(f"--baseline names {ask.baseline}, which is no file")
    with _pair(ask, config) as pair:
        print(f"Bridge: {_is(pair.bridge)}, {ask.bridge}\nverl:   {_is(pair.verl)}, {ask.verl}", flush=True)
        done = running.perform(pair.source, config, _request(ask))
    if done is None:
        return EXIT_CODES[VACUOUS]
    if done.records[0]["status"] == CANCELLED:
        return done.exit_code
    summary = _judged(ask, pair, done)
    directory = os.path.dirname(done.logs[0])
    for name, text in (
        ("summary.txt", "\n".join(report.text(summary)) + "\n"),
        ("summary.md", report.markdown(summary)),
        ("summary.json", json.dumps(report.public(summary), indent=1, ensure_ascii=False) + "\n"),
    ):
        Path(directory, name).write_text(text, encoding="utf-8", errors="backslashreplace")
    print(
        "\n".join(["", *_shown(summary, form), "", f"the summary, as text, markdown and JSON: {directory}"]), flush=True
    )
    return _CODES[summary.result]


def _judged(ask: Ask, pair: Pair, done: Performed) -> Summary:
    record, log = done.records[0], done.logs[0]
    workspace = str(read_json(RunDir(os.path.dirname(log)).plan).get("workspace") or "")
    provenance = Provenance(
        bridge_commit=pair.bridge.commit[:12],
        verl_commit=pair.verl.commit[:12],
        command=ask.command,
        log=log if os.path.exists(log) else "",
        bridge_dirty=pair.bridge.dirty,
        verl_dirty=pair.verl.dirty,
        image=ask.image or "",
        host=ask.host,
        bridge_root=f"{workspace}/{BRIDGE}" if workspace else "",
    )
    facts = read_run(lambda: _pieces(log), ask.wish.proofs)
    baseline = metrics_of(lambda: _pieces(str(ask.baseline))) if ask.baseline else None
    ended = RunEnd(record["status"], record["reason"] or "")
    return judge(ask.wish, pair.trainings, facts, ended, provenance, baseline)


def _pieces(log: str) -> Iterator[bytes]:
    """Nothing where there is no log: a run that never began has none."""
    try:
        with open(log, "rb", buffering=0) as source:
            yield from iter(lambda: source.read(_PIECE), b"")
    except FileNotFoundError:
        return


def _shown(summary: Summary, form: str) -> list[str]:
    if form == "json":
        return [json.dumps(report.public(summary), indent=2, ensure_ascii=False)]
    if form == "markdown":
        return report.markdown(summary).splitlines()
    plot = ["", *report.plot(summary.curve)] if summary.curve is not None else []
    return [*report.text(summary), *plot]


def _is(checkout: Checkout) -> str:
    count = len(checkout.dirty)
    return f"{checkout.commit[:12]}{f' and {count} uncommitted' if count else ''}"


@contextmanager
def _pair(ask: Ask, config: Config) -> Iterator[Pair]:
    """Both trees, checked and copied, for as long as the block lasts. Raises UsageError, CheckoutError."""
    spec = config.host(ask.host)
    wanted = trainings(ask.wish)
    _check_trees(ask, wanted)
    if not ask.image and spec.runtime != "none":
        raise UsageError(
            f"host {spec.name} runs levels in a container, and no image is named",
            hint="--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)",
        )
    volumes = (f"{ask.data}:{ask.data}",) if ask.data else ()
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        trees = Path(scratch) / "trees"
        trees.mkdir()
        made = side_by_side({BRIDGE: ask.bridge, VERL: ask.verl}, trees)
        job = workflow(
            ask.wish,
            wanted,
            ask.image,
            volumes=volumes,
            minutes=_MINUTES[ask.wish.level],
            pretend=spec.simulate,
            contained=spec.runtime != "none",
        )
        source = Source(trees, f"{ask.bridge} and {ask.verl}", job)
        yield Pair(source, made[BRIDGE], made[VERL], wanted)


def _check_trees(ask: Ask, wanted: Sequence[Training]) -> None:
    """Both checkouts are what they are said to be, and verl's script reads every variable that a training sets."""
    if not (ask.bridge / _BRIDGE_HAS).is_dir():
        raise CheckoutError(
            f"{ask.bridge} is no Megatron-Bridge: it has no {_BRIDGE_HAS}", hint="--bridge DIR names it"
        )
    for one in wanted:
        script = ask.verl / one.script
        if not script.is_file():
            raise CheckoutError(f"{ask.verl} has no {one.script}", hint="--verl DIR names verl's checkout")
        if one.level != 4:  # a script of the user's own reads what it likes
            wrapper.check(script.read_text(encoding="utf-8", errors="replace"), one.env, one.script)


def _request(ask: Ask) -> Request:
    return Request(LABEL, None, ask.host, keep=ask.keep, by_runner=True)
