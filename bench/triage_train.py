"""Learns weights.json of the triage from labelled logs, and says how good it is on sources that it has not seen.

    python bench/triage_train.py --write FILE CASES.jsonl… [--unseen CASES.jsonl…] [--passing LOGS.jsonl…]

Needs SciPy (`pip install scipy`), which nothing else here does. A case is a JSON line {id, source, log,
root_line, alt_root_lines?, root_lines?, cause, verdict, amb?, exit_code?}, a passing log {log, source, or the group of
a case}; files may be .xz. The cases of our tests are one more source, and our pages
are logs in which nothing failed. A source is a repository.

Every figure is of logs whose whole source was left out. The line is chosen by a softmax over the candidates of a log
and "nothing failed"; how likely line and verdict are right is a logistic regression.
Rules are written while one looks at logs, so that what they get right there is no measure: tables of `--unseen` cases
are of logs that nobody had looked at when the rules were written.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.logs.causes import group_of
from ci_tasks.logs.triage import ranking as ranks
from ci_tasks.logs.triage.log_triage import read_candidates
from ci_tasks.logs.triage.ranking import CandidateList, Features, Ranking
from ci_tasks.logs.triage.rules import shipped
from ci_tasks.records import FAILED

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests/logs/triage/cases"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]  # prose, in which nothing fails
# What weights are drawn to where a feature is rare: what was known of logs before anything was learned.
PRIOR = {
    "level warning": -2.0,
    "level quiet": -1.5,
    "survived": -4.0,
    "plain before all tracebacks": -2.0,
    "plain beside a traceback": -1.0,
    "bare exception beside a traceback": -1.0,
    "wrapper with a cause": 0.5,
    "passes on beside one who raised": -2.0,
    "stands last beside a rule": -1.5,
    "nothing that ended": 1.5,
    "seen over a long time": -1.0,
    "rank wrapper": -2.0,
    "rank root": 1.0,
    "kind last": -2.0,
    "said last": 2.0,
    "ignored": -6.0,
    "not the first of its chain": -1.0,
    "nothing failed": -1.0,
    "succeeded after all": 3.0,
    "no candidate": 2.0,
    "no traceback": 1.0,
    "no traceback, and succeeded": 2.0,
}
STRENGTH, OF_PRIOR = 0.5, 3.0  # how much it takes to move a weight
OF_CONFIDENCE = 0.1  # the inverse of how strongly its weights are drawn to 0
LEAST = 0.02  # a smaller weight is none
PRECISION = 0.95


Scored = list[tuple["Answer", float]]


@dataclass
class Log:
    """A labelled log with its candidates; `right` says of each, and then of "nothing failed", whether it is right."""

    case: dict[str, Any]
    source: str
    candidates: CandidateList
    features: list[Features]
    right: list[bool]
    ended: bool
    succeeded: bool
    weight: float = 1.0
    unseen: bool = False

    @property
    def failing(self) -> bool:
        return bool(self.case["verdict"] != "pass")

    @property
    def debatable(self) -> str:
        """Which of its labels one can argue about: c cause, v verdict, l line."""
        return str(self.case.get("amb") or ("cv" if self.case.get("ambiguous") else ""))


@dataclass(frozen=True)
class Answer:
    """What would be said of a log, and whether that was right."""

    log: Log
    verdict: str
    features: Features
    line: bool = False
    top: bool = False
    group: bool = False

    @property
    def verdict_right(self) -> bool:
        return self.verdict == self.log.case["verdict"] or "v" in self.log.debatable

    @property
    def right(self) -> bool:
        return (self.line if self.log.failing else self.verdict == "pass") and self.verdict_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="+", metavar="CASES.jsonl")
    parser.add_argument("--unseen", type=Path, action="append", default=[], metavar="CASES.jsonl")
    parser.add_argument("--passing", type=Path, action="append", default=[], metavar="LOGS.jsonl")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    logs = [read_log(case) for path in options.cases for case in load(path)]
    logs += [replace(read_log(case), unseen=True) for path in options.unseen for case in load(path)]
    logs += [read_log(case) for case in own_cases()]
    of_group = {log.case["group"]: log.source for log in logs if log.case.get("group")}
    passing = [{"id": page.name, "source": page.name, "log": page.read_text()} for page in PAGES]
    for case in [case for path in options.passing for case in load(path)]:
        passing.append({**case, "source": case.get("source") or of_group.get(case.get("group", ""), "?")})
    logs += [replace(read_log({**case, "verdict": "pass", "cause": "pass"}), weight=0.5) for case in passing]
    answers = left_out(logs)
    print_tables(answers, cross_fitted(answers))
    if options.write:
        learned = {"ranking": learn_ranking(logs), "confidence": learn_confidence(answers)}
        sources = collections.Counter(log.source for log in logs)
        data = {
            "learned from": {"logs": len(logs), "passing": sum(not log.failing for log in logs), "sources": sources},
            **{
                table: {name: round(value, 2) for name, value in sorted(weights.items()) if abs(value) >= LEAST}
                for table, weights in learned.items()
            },
        }
        options.write.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: Path) -> list[dict[str, Any]]:
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return [json.loads(line) for line in raw.split(b"\n") if line.strip()]


def own_cases() -> list[dict[str, Any]]:
    """The cases of our tests, as one more source."""
    cases = []
    for path in sorted(CASES.glob("*.log")):
        text = path.read_bytes().decode("utf-8", "replace")
        head = dict(re.findall(r"^#: (\w+) (.*)$", text, re.M))
        log = re.sub(r"^(?:#: .*\n)+", "", text)
        verdict = {"failed": "fail", "passed": "pass"}.get(head["verdict"], "blocked")
        code = int(head["exit"]) if "exit" in head else None
        labels = {"root_line": head.get("line", ""), "cause": head["cause"], "verdict": verdict, "exit_code": code}
        if verdict == "pass" or head.get("line"):
            cases.append({"id": path.stem, "source": "our cases", "log": log, **labels})
    return cases


def source_of(case: dict[str, Any]) -> str:
    """The repository that a log is of; of several small ones of one project, the project."""
    url = str(case.get("source") or "").removeprefix("https://github.com/")
    name = re.split(r"[#:]|/issues|/pull|/actions|/blob", url)[0]
    return "pytorch" if name.startswith("pytorch/") else name or str(case.get("group") or "?")


def read_log(case: dict[str, Any]) -> Log:
    reader = read_candidates([case["log"].encode("utf-8", "surrogatepass")])
    found = CandidateList.of(reader)
    failing = case["verdict"] != "pass"
    wanted = [text for text in (case.get("root_line"), *(case.get("alt_root_lines") or [])) if text]
    numbers = {*(case.get("root_lines") or []), *(case.get("alt_lines") or [])}
    numbers |= {at for at, line in enumerate(case["log"].split("\n"), 1) if any(text in line for text in wanted)}
    right = [
        failing and (one.line.number in numbers or any(text in one.line.shown for text in wanted))
        for one in found.candidates
    ]
    is_right = [*right, not failing]
    return Log(case, source_of(case), found, ranks.features(found), is_right, reader.failed, reader.got_through)


# -- learning ----------------------------------------------------------------------------------------------------------


def learn_ranking(logs: Sequence[Log]) -> dict[str, float]:
    """The softmax whose right candidates have the largest share, with weights drawn to PRIOR."""
    logs = [log for log in logs if any(log.right)]
    names, matrix = table([row for log in logs for row in log.features])
    right = np.array([value for log in logs for value in log.right], float)
    lengths = np.array([len(log.right) for log in logs])
    starts = np.append(0, np.cumsum(lengths)[:-1])
    of = np.repeat(np.arange(len(logs)), lengths)
    weight = np.array([log.weight for log in logs])
    prior = np.array([PRIOR.get(name, 0.0) for name in names])
    strength = np.array([OF_PRIOR if name in PRIOR else STRENGTH for name in names])

    def loss(beta: Any) -> tuple[float, Any]:
        scores = matrix @ beta
        powers = np.exp(scores - np.maximum.reduceat(scores, starts)[of])
        total, good = np.add.reduceat(powers, starts), np.add.reduceat(powers * right, starts)
        slope = matrix.T @ ((powers / total[of] - powers * right / good[of]) * weight[of]) + strength * (beta - prior)
        return float((weight * np.log(total / good)).sum() + (strength * (beta - prior) ** 2).sum() / 2), slope

    return fitted(loss, names, prior)


def learn_confidence(answers: Sequence[Answer]) -> dict[str, float]:
    """A logistic regression of what is right, with weights drawn to 0."""
    answers = [one for one in answers if one.log.weight == 1]
    names, matrix = table([one.features for one in answers])
    signs = np.array([1.0 if one.right else -1.0 for one in answers])

    def loss(beta: Any) -> tuple[float, Any]:
        margins = signs * (matrix @ beta)
        slope = beta - OF_CONFIDENCE * matrix.T @ (signs / (1 + np.exp(margins)))
        return float(OF_CONFIDENCE * np.logaddexp(0, -margins).sum() + (beta**2).sum() / 2), slope

    return fitted(loss, names, np.zeros(len(names)))


def table(rows: Sequence[Features]) -> tuple[list[str], Any]:
    """The names of all features, and a row of their values for each of `rows`."""
    names = sorted({name for row in rows for name, value in row.items() if value})
    return names, np.array([[float(row.get(name, 0)) for name in names] for row in rows])


def fitted(loss: Callable[[Any], tuple[float, Any]], names: Sequence[str], begin: Any) -> dict[str, float]:
    best = optimize.minimize(loss, begin.copy(), jac=True, method="L-BFGS-B", options={"maxiter": 400})
    return dict(zip(names, best.x.tolist(), strict=True))


# -- sources left out --------------------------------------------------------------------------------------------------


def folds(logs: Iterable[Log]) -> list[set[str]]:
    """Each source that has some logs alone; the others in five parts."""
    counts = collections.Counter(log.source for log in logs)
    small = sorted(name for name in counts if counts[name] < 5)
    return [*({name} for name in counts if counts[name] >= 5), *(set(small[at::5]) for at in range(5) if small[at::5])]


def left_out(logs: Sequence[Log]) -> list[Answer]:
    """The answers to all, each with the weights that the other sources teach."""
    answers: list[Answer] = []
    for fold in folds(logs):
        weights = learn_ranking([log for log in logs if log.source not in fold])
        for log in [log for log in logs if log.source in fold]:
            for ended in {log.ended or log.case.get("exit_code") not in (None, 0), log.ended}:
                ranking = ranks.rank(log.candidates, ended, weights)
                answers.append(answer(log, ranking))
    return answers


def answer(log: Log, ranking: Ranking) -> Answer:
    if not ranking.failed:
        features = ranks.confidence_features(ranking, blocked=False)
        return Answer(log, "pass" if log.succeeded else "unknown", features)
    right = {id(one) for one, is_right in zip(log.candidates.candidates, log.right, strict=False) if is_right}
    order = [candidate for _, candidate in ranking.order]
    cause, by_rule = ranks.cause_of(order[0], order, shipped())
    verdict = "fail" if by_rule == FAILED else "blocked"
    group = ranks.blamed_group(order[0], cause, by_rule)
    return Answer(
        log,
        verdict,
        ranks.confidence_features(ranking, verdict == "blocked"),
        line=id(order[0]) in right,
        top=any(id(one) in right for one in order[:3]),
        group=group == group_of(log.case["cause"]) or "c" in log.debatable,
    )


def cross_fitted(answers: Sequence[Answer]) -> Scored:
    """Each answer with its confidence, learned from those of other sources."""
    found: Scored = []
    for fold in folds(one.log for one in answers):
        weights = learn_confidence([one for one in answers if one.log.source not in fold])
        inside = [one for one in answers if one.log.source in fold]
        found += [(one, ranks.probability(ranks.score(weights, one.features))) for one in inside]
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def print_tables(answers: Sequence[Answer], scored: Scored) -> None:
    by_source: Mapping[str, list[Answer]] = collections.defaultdict(list)
    for one in answers:
        by_source[one.log.source].append(one)
    several = sorted(by_source.items(), key=lambda item: -len(item[1]))
    labelled = [one for one in answers if one.log.weight == 1]
    unseen = [one for one in answers if one.log.unseen]
    rest = [one for one in answers if one.log.weight != 1]
    for name, ones in [*several, ("labelled", labelled), ("unseen", unseen), ("passing logs and pages", rest)]:
        if len(ones) >= 5:
            print(json.dumps({"source": name, **figures(ones)}))
    measured = [(one, value) for one, value in scored if (one.log.unseen if unseen else one.log.weight == 1)]
    for low in range(10):
        inside = [(one, value) for one, value in measured if min(int(value * 10), 9) == low]
        if inside:
            mean = sum(value for _, value in inside) / len(inside)
            share = sum(one.right for one, _ in inside) / len(inside)
            print(json.dumps({"confidence": round(mean, 2), "right": round(share, 2), "answers": len(inside)}))
    print(json.dumps({"answered at 95 %": answered(measured)}))


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    failing = [one for one in answers if one.log.failing]
    known = [one for one in answers if one.verdict != "unknown"]

    def share(right: Sequence[bool]) -> float | None:
        return round(sum(right) / len(right), 3) if right else None

    return {
        "answers": len(answers),
        "line": share([one.line for one in failing]),
        "top 3": share([one.top for one in failing]),
        "group": share([one.group for one in failing]),
        "verdict": share([one.verdict_right for one in known]),
        "unknown": len(answers) - len(known),
        "unknown failures": sum(one.verdict == "unknown" for one in failing),
        "failures of none": sum(one.verdict in ("fail", "blocked") for one in answers if not one.log.failing),
        "false blocked": sum(
            one.verdict == "blocked" and one.log.case["verdict"] == "fail" and not one.verdict_right for one in answers
        ),
    }


def answered(scored: Scored) -> float:
    """The share that can be answered with a precision of 95 %."""
    best = hits = 0
    for number, (one, _) in enumerate(sorted(scored, key=lambda pair: -pair[1]), 1):
        hits += one.right
        best = number if hits / number >= PRECISION else best
    return round(best / max(1, len(scored)), 3)


if __name__ == "__main__":
    raise SystemExit(main())
