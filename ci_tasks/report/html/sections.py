"""The page's sections of words and tables: what ran, what failed, what differs from CI, what was around it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.model import EXIT_CODES, PASSED, overall
from ci_tasks.report.html.timeline import clock
from ci_tasks.report.html.words import block, details, esc, facts, status, table
from ci_tasks.report.table import evidence_of, told
from ci_tasks.report.triage import describe

Record = Mapping[str, Any]
_LONG = 300  # characters of a reason in the table; the whole stands below
_OF_ONE_RUN = ("taken_at", "started_at", "name", "id")  # what differs between runs in one environment
_SHOWN = ("runtime", "image", "driver", "gpus", "python", "packages", "docker", "containers", "direct")


def summary(records: Sequence[Record]) -> str:
    """How it ended in one line, and the code that ran."""
    counts = Counter(str(record["status"]) for record in records)
    said = " ".join(f"<li>{status(word)} × {count}</li>" for word, count in counts.items())
    starts = sorted(str(record["started_at"]) for record in records if record["started_at"])
    pairs = [
        ("First start", esc(starts[0][:19].replace("T", " ") + " UTC") if starts else ""),
        *(pair for checkout in _different([record["checkout"] for record in records]) for pair in _code(checkout)),
    ]
    together = f'<p class="overall">Together: {status(overall(list(counts)))}</p>\n' if len(counts) > 1 else ""
    return f'{together}<ul class="counts">{said}</ul>\n{facts(pairs)}'


def results(records: Sequence[Record], logs: Sequence[int | None]) -> str:
    """The table of rows. `logs` are the numbers of their logs in the page."""
    head = ("Row", "Status", "Host", "Time", "GPUs", "Evidence", "Reason", "Log")
    body = [
        (
            f'{esc(record["row"])}<br><span class="muted run">{esc(record["id"])}</span>',
            status(record["status"]),
            esc(record["host"] or "–"),
            _took(record),
            esc(", ".join(map(str, record.get("gpu_ids") or ())) or (record["gpus"] or "–")),
            esc(evidence_of(record)),
            _short(told(record)),
            _link(record, log),
        )
        for record, log in zip(records, logs, strict=True)
    ]
    return table("Every row, and how it ended", head, body, "results")


def failures(records: Sequence[Record], logs: Sequence[int | None]) -> str:
    """What failed, each with its line and the lines around it."""
    ended = [(record, log) for record, log in zip(records, logs, strict=True) if record["status"] in EXIT_CODES]
    found = [_failure(record, log) for record, log in ended if record["status"] != PASSED]
    return "".join(found) or "<p>Nothing failed.</p>\n"


def deviations(records: Sequence[Record]) -> str:
    """What differs from CI; a difference that several rows share stands once."""
    found: dict[tuple[str, str, str, str], dict[str, None]] = {}
    for record in records:
        for item in record["deviations"]:
            key = (item["what"], item["ci"], item["here"], item["why"])
            found.setdefault(key, {})[str(record["row"])] = None
    if not found:
        return "<p>Nothing differs from CI that is known.</p>\n"
    every = len({str(record["row"]) for record in records})
    body = [
        (*(f'<span class="text">{esc(part)}</span>' for part in key), _rows(list(rows), every))
        for key, rows in found.items()
    ]
    return table("What differs from CI, and why", ("What", "In CI", "Here", "Why", "Rows"), body)


def environment(records: Sequence[Record]) -> str:
    """The machine, images and packages; rows in one environment share a list."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(json.dumps(_lasting(record["environment"]), sort_keys=True, default=str), []).append(record)
    parts = []
    for several in groups.values():
        if len(groups) > 1:
            parts.append(f"<h3>{esc(_names([str(record['row']) for record in several]))}</h3>\n")
        parts.append(_environment(several[0]["environment"]))
    return "".join(parts)


def _code(checkout: Mapping[str, Any]) -> list[tuple[str, str]]:
    dirty = [str(path) for path in checkout.get("dirty") or ()]
    many = f"{len(dirty)} uncommitted file{'' if len(dirty) == 1 else 's'}"
    listed = details(many, f"<ul>{''.join(f'<li><code>{esc(path)}</code></li>' for path in dirty)}</ul>")
    return [
        ("Checkout", f"{esc(checkout.get('path'))}{' (the embedded sample)' if checkout.get('sample') else ''}"),
        ("Commit", f"<code>{esc(checkout.get('commit'))}</code>{listed if dirty else ''}"),
        ("Tree", f"<code>{esc(checkout.get('tree'))}</code>"),
    ]


def _different(found: Sequence[Any]) -> list[Mapping[str, Any]]:
    return list({json.dumps(one, sort_keys=True): one for one in found if one}.values())


def _took(record: Record) -> str:
    seconds = record["timings"]["seconds"]
    return "–" if seconds is None else clock(seconds)


def _short(text: str) -> str:
    return f'<span class="text">{esc(text if len(text) <= _LONG else text[:_LONG] + "…")}</span>'


def _link(record: Record, log: int | None) -> str:
    if log is None:
        return "–"
    line = (record.get("triage") or {}).get("line_no")
    # The word alone would be the same for every row: a list of links needs the row's name too.
    said = f"line {line}" if line else "log"
    target = f"#log-{log}:{line}" if line else f"#log-{log}"
    return f'<a class="to-log" href="{target}">{said}<span class="unseen"> of {esc(record["row"])}</span></a>'


def _failure(record: Record, log: int | None) -> str:
    head = f"<h3>{status(record['status'])} {esc(record['row'])}</h3>\n"
    found = record.get("triage")
    if not found:
        return f'<article>{head}<p class="text">{esc(record["reason"] or "the log says nothing of it")}</p></article>\n'
    second = found.get("second")
    pairs = [
        ("Verdict", esc(describe(found)[0])),
        ("Cause", esc(f"{found['cause']}{f': {why}' if (why := found['reason']) else ''}")),
        ("Line", f'<code class="text">{esc(found["text"] or found["line"])}</code> {_link(record, log)}'),
        ("Called from", esc(" › ".join(found["frames"]))),
        ("Signature", f'<code class="text">{esc(found["signature"])}</code>' if found["signature"] else ""),
        ("Confidence", f"{found['confidence']:.2f}"),
        ("Or", f'<code class="text">{esc(second["line"])}</code> (line {second["line_no"]})' if second else ""),
    ]
    return f"<article>{head}{facts(pairs)}{_context(found)}</article>\n"


def _context(found: Mapping[str, Any]) -> str:
    """The lines around the blamed one, numbered."""
    context = [str(line) for line in found["context"]]
    if found["line"] not in context or not found["line_no"]:
        return ""
    first = found["line_no"] - context.index(found["line"])
    lines = []
    for number, line in enumerate(context, first):
        text = f'<span class="no">{number:>7} </span>{block(line)}'
        lines.append(f"<mark>{text}</mark>" if number == found["line_no"] else text)
    return '<pre class="context" tabindex="0" aria-label="the lines around it">' + "\n".join(lines) + "</pre>\n"


def _rows(rows: Sequence[str], every: int) -> str:
    return "all" if len(rows) == every else esc(_names(rows))


def _names(rows: Sequence[str]) -> str:
    return ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _lasting(value: Any) -> Any:
    """An environment without what is another for each run in it."""
    if isinstance(value, Mapping):
        return {key: _lasting(inner) for key, inner in value.items() if key not in _OF_ONE_RUN}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def _environment(found: Mapping[str, Any]) -> str:
    gpus = Counter(str(gpu.get("name")) for gpu in found.get("gpus") or () if isinstance(gpu, Mapping))
    others = {key: value for key, value in found.items() if key not in (*_SHOWN, *_OF_ONE_RUN) and value}
    pairs = [
        ("Runtime", esc(found.get("runtime") or "")),
        ("Image", f"<code>{esc(found['image'])}</code>" if found.get("image") else ""),
        ("GPUs", esc(", ".join(f"{count} × {name}" for name, count in gpus.items()))),
        ("Driver", esc(found.get("driver") or "")),
        ("Docker", _plain(found.get("docker"))),
        ("Python", esc(found.get("python") or "")),
        *((esc(key), _plain(value)) for key, value in others.items()),
    ]
    containers = [one for one in found.get("containers") or () if isinstance(one, Mapping)]
    return facts(pairs) + _packages(found) + "".join(map(_container, containers))


def _container(found: Mapping[str, Any]) -> str:
    pairs = [
        ("Container", esc(found.get("name") or "")),
        ("Image", f"<code>{esc(found.get('image') or '')}</code>"),
        ("Digests", "<br>".join(f"<code>{esc(one)}</code>" for one in found.get("digests") or ())),
        ("Python", esc(found.get("python") or "")),
        ("Note", esc(found.get("problem") or "")),
    ]
    return facts(pairs) + _packages(found)


def _packages(found: Mapping[str, Any]) -> str:
    packages = found.get("packages") or {}
    if not packages:
        return ""
    direct = found.get("direct") or {}
    body = [
        (esc(name), esc(version), esc((direct.get(name) or {}).get("url") or ""))
        for name, version in sorted(packages.items(), key=lambda item: str(item[0]).lower())
    ]
    return details(f"{len(body)} packages", table("Python packages", ("Package", "Version", "From"), body))


def _plain(value: Any) -> str:
    if not value:
        return ""
    return esc(value) if isinstance(value, (str, int, float)) else f"<code>{esc(json.dumps(value, default=str))}</code>"
