"""How often a triage is right on labelled logs, in its line, cause and verdict, beside three naive ways to pick a line.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import Triage

GOALS = {"line": 0.90, "cause": 0.85, "verdict": 0.95}
_WORD = re.compile(r"error|exception|fatal|failed|killed", re.I)
_ERROR = re.compile(r"\w*Error: ")
_VERDICTS = {"failed": "fail", "passed": "pass", "cancelled": "blocked"}  # as labels have them


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    return next((line for line in lines if pattern.search(line)), "")


BASELINES: dict[str, Callable[[list[str]], str]] = {
    "first line with error, exception, fatal, failed or killed": lambda lines: _first(_WORD, lines),
    "first XxxError line": lambda lines: _first(_ERROR, lines),
    "last XxxError line": lambda lines: _first(_ERROR, reversed(lines)),
}


@dataclass(frozen=True)
class Answer:
    """What a triage said of a case, and whether that was right."""

    case: dict[str, Any]
    got: Triage
    seconds: float

    @property
    def failing(self) -> bool:
        return bool(self.case["verdict"] != "pass")

    @property
    def line(self) -> bool:
        return holds(self.case, self.got.line)

    @property
    def cause(self) -> bool:
        return bool(self.got.cause == self.case["cause"])

    @property
    def verdict(self) -> bool:
        return bool(_VERDICTS.get(self.got.verdict, self.got.verdict) == self.case["verdict"])


def holds(case: dict[str, Any], line: str) -> bool:
    """Whether a line is the one that a maintainer would quote."""
    wanted = [case["root_line"], *(case.get("alt_root_lines") or [])]
    return any(one.strip() and one.strip() in line for one in wanted if one)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, metavar="CASES.jsonl")
    parser.add_argument("--verbose", action="store_true", help="each wrong answer, with what was wanted")
    options = parser.parse_args()
    cases = [json.loads(row) for row in options.cases.read_text(encoding="utf-8").splitlines() if row.strip()]
    triage([b"warm up: error\n"])  # rules are compiled once
    answers = [_answer(case) for case in cases]
    figures = [*_overall(answers), *_baselines(answers), *_classes(answers), _speed(answers)]
    for figure in [*figures, *(_wrong(answers) if options.verbose else [])]:
        print(json.dumps(figure, ensure_ascii=False))
    return int(any(figure["strict"] < figure["goal"] for figure in figures if "goal" in figure))


def _answer(case: dict[str, Any]) -> Answer:
    log = case["log"].encode("utf-8", "surrogatepass")
    begun = time.perf_counter()
    got = triage([log])
    return Answer(case, got, time.perf_counter() - begun)


def _share(right: Iterable[bool]) -> float:
    values = list(right)
    return round(sum(values) / len(values), 3) if values else 1.0


def _clear(answers: list[Answer]) -> list[Answer]:
    return [one for one in answers if not one.case.get("ambiguous")]


def _overall(answers: list[Answer]) -> list[dict[str, Any]]:
    figures = []
    for what, goal in GOALS.items():
        asked = [one for one in answers if one.failing or what != "line"]
        right = sum(getattr(one, what) for one in asked)
        figures.append(
            {
                "figure": what,
                "strict": _share(getattr(one, what) for one in asked),
                "lenient": _share(getattr(one, what) for one in _clear(asked)),
                "goal": goal,
                "right": right,
                "cases": len(asked),
            }
        )
    return figures


def _baselines(answers: list[Answer]) -> list[dict[str, Any]]:
    failing = [one for one in answers if one.failing]
    return [
        {
            "figure": f"line, {name}",
            "strict": _share(holds(one.case, pick(one.case["log"].splitlines())) for one in failing),
            "lenient": _share(holds(one.case, pick(one.case["log"].splitlines())) for one in _clear(failing)),
            "cases": len(failing),
        }
        for name, pick in BASELINES.items()
    ]


def _classes(answers: list[Answer]) -> list[dict[str, Any]]:
    figures = []
    for cause in sorted({one.case["cause"] for one in answers}):
        of = [one for one in answers if one.case["cause"] == cause]
        shares = {what: _share(getattr(one, what) for one in of) for what in ("line", "cause", "verdict")}
        if cause == "pass":
            del shares["line"]
        figures.append({"figure": f"class {cause}", **shares, "cases": len(of)})
    return figures


def _speed(answers: list[Answer]) -> dict[str, Any]:
    times = [one.seconds * 1000 for one in answers] or [0.0]
    return {"figure": "ms", "median": round(statistics.median(times), 2), "longest": round(max(times), 2)}


def _wrong(answers: list[Answer]) -> Iterable[dict[str, Any]]:
    for one in answers:
        wrong = [what for what in GOALS if not getattr(one, what) and (one.failing or what != "line")]
        if wrong:
            yield {
                "wrong": one.case["id"],
                "in": wrong,
                "wanted": {key: one.case[key] for key in ("cause", "verdict", "root_line")},
                "got": {"cause": one.got.cause, "verdict": one.got.verdict, "line": one.got.line, "rule": one.got.rule},
                "next": [other.line for other in one.got.candidates],
                "ambiguous": bool(one.case.get("ambiguous")),
            }


if __name__ == "__main__":
    raise SystemExit(main())
