"""How often a triage is right on labelled logs, in its line, cause and verdict, beside the first `XxxError` line.

    python bench/triage.py CASES.jsonl [--verbose]      one JSON line a figure; `--verbose` shows each wrong answer too.
    Exit code 1 where a share is below its goal.

A case is a JSON line {id, log, root_line, cause, verdict, alt_root_lines?, ambiguous?}. A line is right where it has
`root_line` or one of `alt_root_lines` in it; it is not asked for where nothing failed. `strict` counts all cases,
`lenient` those whose label is not `ambiguous`. `ms` is the time of a triage, the median and the longest.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import Triage

GOALS = {"line": 0.90, "cause": 0.85, "verdict": 0.95}
_ERROR = re.compile(r"\w*Error: ")
_VERDICTS = {"failed": "fail", "passed": "pass", "cancelled": "blocked"}  # as labels have them


@dataclass(frozen=True)
class Answer:
    """What a triage said of a case. `right` says of each figure whether it was."""

    case: dict[str, Any]
    got: Triage
    right: dict[str, bool]
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, metavar="CASES.jsonl")
    parser.add_argument("--verbose", action="store_true", help="each wrong answer, with what was wanted")
    options = parser.parse_args()
    cases = [json.loads(row) for row in options.cases.read_text(encoding="utf-8").splitlines() if row.strip()]
    triage([b"warm up: error\n"])  # rules are compiled once
    answers = [_answer(case) for case in cases]
    figures = [_figure(name, answers, GOALS.get(name)) for name in (*GOALS, "the first XxxError line")]
    times = [one.seconds * 1000 for one in answers] or [0.0]
    speed = {"figure": "ms", "median": round(statistics.median(times), 2), "longest": round(max(times), 2)}
    classes = [
        _figure(name, [one for one in answers if one.case["cause"] == cause], group=cause)
        for cause in sorted({one.case["cause"] for one in answers})
        for name in GOALS
    ]
    for figure in [*figures, *classes, speed, *(_wrong(answers) if options.verbose else [])]:
        print(json.dumps(figure, ensure_ascii=False))
    return int(any(figure["strict"] < (figure["goal"] or 0) for figure in figures))


def _answer(case: dict[str, Any]) -> Answer:
    begun = time.perf_counter()
    got = triage([case["log"].encode("utf-8", "surrogatepass")])
    seconds = time.perf_counter() - begun
    right = {"cause": got.cause == case["cause"], "verdict": _VERDICTS.get(got.verdict, got.verdict) == case["verdict"]}
    if case["verdict"] != "pass":
        first = next((line for line in case["log"].splitlines() if _ERROR.search(line)), "")
        right |= {"line": _holds(case, got.line), "the first XxxError line": _holds(case, first)}
    return Answer(case, got, right, seconds)


def _holds(case: dict[str, Any], line: str) -> bool:
    """Whether a line is the one that a maintainer would quote."""
    wanted = [case["root_line"], *(case.get("alt_root_lines") or [])]
    return any(one.strip() and one.strip() in line for one in wanted if one)


def _figure(name: str, answers: Sequence[Answer], goal: float | None = None, group: str = "") -> dict[str, Any]:
    asked = [one for one in answers if name in one.right]
    clear = [one for one in asked if not one.case.get("ambiguous")]
    shares = [round(sum(one.right[name] for one in some) / max(1, len(some)), 3) for some in (asked, clear)]
    strict, lenient = shares
    return {"figure": name, "class": group, "strict": strict, "lenient": lenient, "goal": goal, "cases": len(asked)}


def _wrong(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "wrong": one.case["id"],
            "in": [name for name in GOALS if not one.right.get(name, True)],
            "wanted": {key: one.case[key] for key in ("cause", "verdict", "root_line")},
            "got": {key: getattr(one.got, key) for key in ("cause", "verdict", "line", "rule")},
            "next": [other.line for other in one.got.candidates],
        }
        for one in answers
        if not all(one.right.get(name, True) for name in GOALS)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
