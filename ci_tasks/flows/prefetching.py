"""`prefetch`: what a label's tests will ask the hub for, brought to the host before anything holds its GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import EXIT_BLOCKED, UsageError
from ci_tasks.flows.outputs import Found as FoundRows
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.source import Source, given_secrets, situation
from ci_tasks.flows.stock import Host, open_host
from ci_tasks.flows.stocktaking import fitting, line_of, mounts_of, refused_line, request_of
from ci_tasks.flows.wanting import Item, Read, Wanted, wanted
from ci_tasks.hub.asking import Hub, endpoint_of, shown, token_here
from ci_tasks.hub.found import Found, Refusal
from ci_tasks.model import HostSpec, Row
from ci_tasks.plan.steps import check_overrides
from ci_tasks.report import prefetch as report
from ci_tasks.report.prefetch import FETCHED, THERE, Line, Path, Stock
from ci_tasks.runner.hub.refused import OFFLINE
from ci_tasks.runner.hub.sizes import human
from ci_tasks.runs import store
from ci_tasks.suites import slime
from ci_tasks.sync.snapshot import take

TOKEN = "HF_TOKEN"
AT_ONCE = 4  # repositories that the hub is asked about
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
Say = Callable[[str], None]
Progress = Callable[[Line, Mapping[str, Any]], None]
OpenHost = Callable[[HostSpec], Any]


@dataclass(frozen=True)
class Ask:
    """What a person asked for. `dry_run` looks and brings nothing."""

    label: str
    only: str | None = None
    host: str = "local"
    base: str | None = None
    dry_run: bool = False
    as_json: bool = False


def prefetch(
    source: Source, config: Config, ask: Ask, *, say: Say, progress: Progress, open_host: OpenHost = open_host
) -> int:
    """Print how everything stands, and bring what is missing. Returns 125 where a run would be blocked, else 0."""
    spec = _one_host(config, ask.host)
    check_overrides(config.overrides, source.workflow.jobs)
    found = find_rows(source, ask.label, situation(source, secrets=given_secrets(source.workflow)), ask.base)
    rows = slime.select(found.rows, ask.only, ask.label)
    stock = _stock(source, config, found, rows, spec, _reader(source), ask.dry_run, say, progress, open_host)
    if ask.as_json:
        public = {**asdict(stock), "checkout": str(source.path), "label": ask.label, "blocked": stock.blocked}
        print(json.dumps(public, indent=2, ensure_ascii=False))
    else:
        print("\n".join([*report.text(stock), "", report.summary(stock)]))
    return EXIT_BLOCKED if stock.blocked else 0


def problems(
    source: Source,
    config: Config,
    found: FoundRows,
    rows: Sequence[Row],
    spec: HostSpec,
    read: Read,
    say: Say,
    *,
    open_host: OpenHost = open_host,
) -> dict[str, str]:
    """Bring everything that `rows` need to a host. Returns, by the names of rows that lack something, what that is.

    `read` gives a file of the tree that will run. Raises Blocked where the host cannot be reached."""
    stock = _stock(source, config, found, rows, spec, read, False, say, _quiet(say), open_host)
    lacks: dict[str, list[str]] = {}
    for line in stock.repositories:
        for row in line.rows if line.problem else ():
            lacks.setdefault(row, []).append(f"{line.message} ({line.hint})" if line.hint else line.message)
    for path in stock.expected:
        for row in path.rows if path.there is False else ():
            lacks.setdefault(row, []).append(f"{path.path} is missing, and no download of the test makes it")
    return {row: "; ".join(dict.fromkeys(said)) for row, said in lacks.items()}


# -- the story, in its order -----------------------------------------------------------------------------------------


def _stock(
    source: Source,
    config: Config,
    found: FoundRows,
    rows: Sequence[Row],
    spec: HostSpec,
    read: Read,
    dry_run: bool,
    say: Say,
    progress: Progress,
    open_host: OpenHost,
) -> Stock:
    asks = wanted(source, config, found, rows, spec, read)
    endpoint = endpoint_of(spec.env)
    if not asks.items and not asks.needed:
        return Stock(spec.name, shown(endpoint), unresolved=tuple(asks.questions))
    with open_host(spec) as host:  # connected to while the hub is asked
        hub = Hub(endpoint, token_here(), say)
        answers = _answers(hub, asks.items, spec)
        stock = _look(host, asks, answers, hub, spec)
        return stock if dry_run else _bring(host, stock, asks.items, answers, hub, spec, progress)


def _answers(hub: Hub, items: Sequence[Item], spec: HostSpec) -> list[Found | Refusal]:
    if spec.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        message = f"HF_HUB_OFFLINE is set for {spec.name} in hosts.yaml"
        return [hub.refusal(OFFLINE, message, item.repository) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda item: hub.find(item.repository), items))


def _look(host: Host, asks: Wanted, answers: Sequence[Found | Refusal], hub: Hub, spec: HostSpec) -> Stock:
    requests = [request_of(item, answer, hub) for item, answer in zip(asks.items, answers, strict=True)]
    paths = [one.place.path for one in asks.needed if one.place.path]
    said = host.look([request for request in requests if request], paths)
    states = iter(said["repositories"])
    lines = [
        line_of(item, answer, next(states) if request else None, hub)
        for item, answer, request in zip(asks.items, answers, requests, strict=True)
    ]
    mounts = mounts_of(lines, said["repositories"])
    full = [mount for mount in mounts if not mount.fits]
    return Stock(
        host=spec.name,
        endpoint=shown(hub.endpoint),
        repositories=tuple(fitting(line, full, hub, item) for line, item in zip(lines, asks.items, strict=True)),
        mounts=tuple(mounts),
        expected=tuple(
            Path(one.path, one.place.path, _there(said["paths"], one.place.path), one.rows, one.where)
            for one in asks.needed
        ),
        unresolved=tuple(asks.questions),
        notes=_notes(spec),
    )


def _bring(
    host: Host,
    stock: Stock,
    items: Sequence[Item],
    answers: Sequence[Found | Refusal],
    hub: Hub,
    spec: HostSpec,
    progress: Progress,
) -> Stock:
    """One repository after the other: two at once would only share the way out."""
    requests = [request_of(item, answer, hub) for item, answer in zip(items, answers, strict=True)]
    lines: list[Line] = []
    for line, item, answer, request in zip(stock.repositories, items, answers, requests, strict=True):
        if line.problem or request is None or isinstance(answer, Refusal):
            lines.append(line)
            continue
        token = hub.token if answer.wants_token or TOKEN in spec.secrets or spec.kind == "local" else None
        said = host.fetch(request, token, _proxies(spec), partial(progress, line))
        if line.state == THERE:  # asked all the same: the host makes a note that it is, unless it may not write there
            lines.append(line)
        elif "code" in said:
            lines.append(refused_line(line, said, hub, item))
        else:
            lines.append(replace(line, state=FETCHED, missing=0))
    after = host.look([request for request in requests if request], [])["repositories"]
    return replace(stock, repositories=tuple(lines), mounts=tuple(mounts_of(lines, after)))


def _notes(spec: HostSpec) -> tuple[str, ...]:
    if spec.kind == "slurm":
        return (f"on {spec.name} this is the login node's view: the compute nodes must share these directories",)
    return ()


def _there(found: Mapping[str, bool], path: str | None) -> bool | None:
    return None if path is None else found.get(path)


def _proxies(spec: HostSpec) -> dict[str, str]:
    """The host's own, where hosts.yaml names them."""
    given = {name.lower(): value for name, value in spec.env.items()}
    return {name.removesuffix("_proxy"): given[name] for name in _PROXIES if given.get(name)}


def _one_host(config: Config, name: str) -> HostSpec:
    specs = config.chosen(name)
    if len(specs) != 1:
        raise UsageError(f"prefetch is for one host, and {name} is several", hint="name each of them in turn")
    return specs[0]


def _reader(source: Source) -> Read:
    """Files of the tree as it stands, or of the revision."""
    snapshot = take(source.path, store.home() / "sync" / "prefetch", rev=source.rev)

    def read(path: str) -> str | None:
        found = snapshot.read(path)
        return None if found is None else found.decode(errors="replace")

    return read


def _quiet(say: Say) -> Progress:
    """For a command with a view of its own: that a repository is fetched, once."""
    named: set[str] = set()

    def progress(line: Line, news: Mapping[str, Any]) -> None:
        if line.name not in named:
            named.add(line.name)
            say(f"fetching {line.name} ({human(line.missing or 0)}) to {line.directory}")
        if "note" in news:
            say(str(news["note"]))

    return progress
