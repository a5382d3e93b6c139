"""Learns weights.json of the triage from labelled logs, and says how good it is on sources that it has not seen.

    python bench/triage_train.py --write FILE CASES.jsonl… [--unseen CASES.jsonl…] [--passing LOGS.jsonl…] [--verbose]

Needs scikit-learn (`pip install scikit-learn`), which nothing else here does. A case is a JSON line {id, source, log,
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, sparse
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.logs.causes import group_of
from ci_tasks.logs.triage.candidate_reader import Candidate
from ci_tasks.logs.triage.log_triage import read_candidates
from ci_tasks.logs.triage.ranking import (
    CandidateList,
    Features,
    Ranking,
    blamed_group,
    cause_of,
    confidence_features,
    features,
    probability,
    rank,
    score,
)
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
    "ends with a traceback": -4.0,
    "ended by an exception": -3.0,
    "symptom after a success": -1.0,
    "stands last beside a rule": -1.5,
    "nothing that ended": 1.5,
    "a page of markdown": 6.0,
    "seen over a long time": -1.0,
    "rank wrapper": -2.0,
    "rank root": 1.0,
    "kind last": -2.0,
    "said last": 2.0,
    "ignored": -6.0,
    "a success came later": -1.5,
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
LEAST_CONFIDENCE = 0.3  # below, fewer than one in three lines were right


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


@dataclass(frozen=True)
class Answer:
    """What would be said of a log, and whether that was right."""

    log: Log
    line: bool
    top: bool
    group: bool
    verdict: str
    features: Features

    @property
    def verdict_right(self) -> bool:
        return self.verdict == self.log.case["verdict"] or "v" in amb(self.log.case)

    @property
    def right(self) -> bool:
        return (self.line if self.log.failing else self.verdict == "pass") and self.verdict_right


def amb(case: dict[str, Any]) -> str:
    """Which labels of a case one can argue about: c cause, v verdict, l line."""
    return str(case.get("amb") or ("cv" if case.get("ambiguous") else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, nargs="+", metavar="CASES.jsonl")
    parser.add_argument("--unseen", type=Path, action="append", default=[], metavar="CASES.jsonl")
    parser.add_argument("--passing", type=Path, action="append", default=[], metavar="LOGS.jsonl")
    parser.add_argument("--without", action="append", default=[], metavar="SOURCE")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--verbose", action="store_true", help="each wrong line, and what was chosen")
    options = parser.parse_args()
    logs = [read_log(case) for path in options.cases for case in load(path)]
    logs += [replace(read_log(case), unseen=True) for path in options.unseen for case in load(path)]
    logs += [read_log(case) for case in own_cases()]
    logs += [
        read_log({**PASSING, "id": page.name, "source": page.name, "log": page.read_text()}, 0.5) for page in PAGES
    ]
    of_group = {log.case["group"]: log.source for log in logs if log.case.get("group")}
    for case in [case for path in options.passing for case in load(path)]:
        source = case.get("source") or of_group.get(case.get("group", ""), "?")
        logs.append(read_log({**case, **PASSING, "source": source}, weight=0.5))
    logs = [log for log in logs if log.source not in options.without]
    answers = left_out(logs, options.verbose)
    confidences = cross_fitted(answers)
    print_tables(answers, confidences)
    if options.write:
        known = teaching(answers)
        tables = learn(logs) | {
            "confidence": logistic([(one.features, one.right) for one in known], softness=OF_CONFIDENCE)
        }
        sources = collections.Counter(log.source for log in logs)
        data = {
            "learned from": {"logs": len(logs), "passing": sum(not log.failing for log in logs), "sources": sources},
            "least_confidence": LEAST_CONFIDENCE,
            **{name: rounded(tables[name]) for name in ("ranking", "confidence")},
        }
        options.write.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


# -- reading -----------------------------------------------------------------------------------------------------------

PASSING = {"verdict": "pass", "cause": "pass", "root_line": "", "alt_root_lines": []}


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
    name = re.split(
        r"[#:]|/issues|/pull|/actions|/blob", str(case.get("source") or "").removeprefix("https://github.com/")
    )
    return "pytorch" if name[0].startswith("pytorch/") else name[0] or str(case.get("group") or "?")


def read_log(case: dict[str, Any], weight: float = 1.0) -> Log:
    reader = read_candidates([case["log"].encode("utf-8", "surrogatepass")])
    found = CandidateList.of(reader)
    failing = case["verdict"] != "pass"
    wanted = [text for text in (case.get("root_line"), *(case.get("alt_root_lines") or [])) if text]
    numbers = {*(case.get("root_lines") or []), *(case.get("alt_lines") or [])}
    numbers |= {at for at, line in enumerate(case["log"].split("\n"), 1) if any(text in line for text in wanted)}

    def is_right(one: Candidate) -> bool:
        return one.line.number in numbers or any(text in one.line.shown for text in wanted)

    right = [failing and is_right(one) for one in found.candidates] + [not failing]
    return Log(case, source_of(case), found, features(found), right, reader.failed, reader.got_through, weight)


# -- learning ----------------------------------------------------------------------------------------------------------


def learn(logs: Sequence[Log]) -> dict[str, dict[str, float]]:
    """The weights for lines."""
    return {"ranking": learn_ranking(logs)}


def learn_ranking(logs: Sequence[Log]) -> dict[str, float]:
    """The softmax whose right candidates have the largest share, with weights drawn to PRIOR."""
    logs = [log for log in logs if any(log.right)]
    names = sorted({name for log in logs for row in log.features for name, value in row.items() if value})
    matrix = rows_of([row for log in logs for row in log.features], names)
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

    beta = optimize.minimize(loss, prior.copy(), jac=True, method="L-BFGS-B", options={"maxiter": 400}).x
    return dict(zip(names, beta.tolist(), strict=True))


def rows_of(rows: Sequence[Features], names: Sequence[str]) -> Any:
    at = {name: number for number, name in enumerate(names)}
    cells = [(row, at[name], float(value)) for row, one in enumerate(rows) for name, value in one.items() if name in at]
    lines, columns, values = zip(*cells, strict=True)
    return sparse.csr_matrix((values, (lines, columns)), shape=(len(rows), len(names)))


def logistic(
    rows: Sequence[tuple[Features, bool]], names: Sequence[str] | None = None, softness: float = 1.0
) -> dict[str, float]:
    names = names or sorted({name for row, _ in rows for name in row})
    model = LogisticRegression(C=softness, fit_intercept=False, max_iter=2000)
    model.fit(rows_of([row for row, _ in rows], names), [right for _, right in rows])
    return dict(zip(names, model.coef_[0].tolist(), strict=True))


def rounded(weights: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in sorted(weights.items()) if abs(value) >= LEAST}


# -- sources left out --------------------------------------------------------------------------------------------------


def folds(sources: Iterable[str]) -> list[set[str]]:
    """Each source that has some logs alone; the others in five parts."""
    counts = collections.Counter(sources)
    small = sorted(name for name in counts if counts[name] < 5)
    return [*({name} for name in counts if counts[name] >= 5), *(set(small[at::5]) for at in range(5) if small[at::5])]


def left_out(logs: Sequence[Log], verbose: bool) -> list[Answer]:
    """The answers to all, each with the weights that the other sources teach."""
    answers: list[Answer] = []
    for fold in folds(log.source for log in logs):
        weights = learn([log for log in logs if log.source not in fold])
        for log in [log for log in logs if log.source in fold]:
            for ended in {log.ended or log.case.get("exit_code") not in (None, 0), log.ended}:
                ranking = rank(log.candidates, weights["ranking"], ended)
                answers.append(answer(log, ranking, ended))
            if verbose and log.failing and not answers[-1].line:
                print(json.dumps(wrong(log, ranking), ensure_ascii=False))
    return answers


def answer(log: Log, ranking: Ranking, ended: bool) -> Answer:
    if not ranking.failed:
        verdict = "pass" if log.succeeded else "unknown"
        return Answer(log, False, False, False, verdict, confidence_features(ranking, blocked=False, ends=ended))
    right = {id(one) for one, is_right in zip(log.candidates.candidates, log.right, strict=False) if is_right}
    order = [candidate for _, candidate in ranking.order]
    cause, by_rule = cause_of(order[0], order, shipped())
    verdict = "fail" if by_rule == FAILED else "blocked"
    group = blamed_group(order[0], cause, by_rule)
    return Answer(
        log,
        id(order[0]) in right,
        any(id(one) in right for one in order[:3]),
        group == group_of(log.case["cause"]) or "c" in amb(log.case),
        verdict,
        confidence_features(ranking, verdict == "blocked", ended),
    )


def wrong(log: Log, ranking: Ranking) -> dict[str, Any]:
    shown = [f"{share:.2f} {one.line.number}: {one.text[:100]}" for share, one in ranking.order[:3]]
    return {"id": log.case["id"], "source": log.source, "wanted": log.case["root_line"][:120], "chosen": shown}


def cross_fitted(answers: Sequence[Answer]) -> list[float]:
    """The confidence of each answer, learned from those of other sources."""
    found = [0.0] * len(answers)
    teachers = teaching(answers)
    for fold in folds(one.log.source for one in answers):
        known = [(one.features, one.right) for one in teachers if one.log.source not in fold]
        weights = logistic(known, softness=OF_CONFIDENCE)
        for at, one in enumerate(answers):
            if one.log.source in fold:
                found[at] = probability(score(weights, one.features))
    return found


def teaching(answers: Sequence[Answer]) -> list[Answer]:
    """Those from which the confidence is learned."""
    return [one for one in answers if one.log.weight == 1]


# -- tables ------------------------------------------------------------------------------------------------------------


def print_tables(answers: Sequence[Answer], confidences: Sequence[float]) -> None:
    by_source: dict[str, list[tuple[Answer, float]]] = collections.defaultdict(list)
    for one, confidence in zip(answers, confidences, strict=True):
        by_source[one.log.source].append((one, confidence))
    everything = [pair for pairs in by_source.values() for pair in pairs]
    labelled = [pair for pair in everything if pair[0].log.weight == 1]
    rest = [pair for pair in everything if pair[0].log.weight != 1]
    unseen = [pair for pair in everything if pair[0].log.unseen]
    several = sorted(by_source.items(), key=lambda item: -len(item[1]))
    for name, pairs in [*several, ("labelled", labelled), ("unseen", unseen), ("passing logs and pages", rest)]:
        if len(pairs) >= 5:
            print(json.dumps({"source": name, **figures(pairs)}))
    of_confidence = unseen or labelled
    for low in range(10):
        inside = [(one, value) for one, value in of_confidence if min(int(value * 10), 9) == low]
        if inside:
            mean = sum(value for _, value in inside) / len(inside)
            share = sum(one.right for one, _ in inside) / len(inside)
            print(json.dumps({"confidence": round(mean, 2), "right": round(share, 2), "answers": len(inside)}))
    print(json.dumps({"answered at 95 %": answered(of_confidence)}))


def figures(pairs: Sequence[tuple[Answer, float]]) -> dict[str, Any]:
    failing = [one for one, _ in pairs if one.log.failing]
    known = [one for one, _ in pairs if one.verdict != "unknown"]

    def share(ones: Sequence[Answer], right: Callable[[Answer], bool]) -> float | None:
        return round(sum(right(one) for one in ones) / len(ones), 3) if ones else None

    return {
        "answers": len(pairs),
        "line": share(failing, lambda one: one.line),
        "top 3": share(failing, lambda one: one.top),
        "group": share(failing, lambda one: one.group),
        "verdict": share(known, lambda one: one.verdict_right),
        "unknown": len(pairs) - len(known),
        "unknown failures": sum(one.verdict == "unknown" for one in failing),
        "failures of none": sum(one.verdict not in ("pass", "unknown") for one, _ in pairs if not one.log.failing),
        "false blocked": sum(map(is_false_blocked, (one for one, _ in pairs))),
    }


def is_false_blocked(one: Answer) -> bool:
    return one.verdict == "blocked" and one.log.case["verdict"] == "fail" and not one.verdict_right


def answered(pairs: Sequence[tuple[Answer, float]]) -> float:
    """The share that can be answered with a precision of 95 %."""
    best = hits = 0
    for number, (one, _) in enumerate(sorted(pairs, key=lambda pair: -pair[1]), 1):
        hits += one.right
        best = number if hits / number >= PRECISION else best
    return round(best / max(1, len(pairs)), 3)


if __name__ == "__main__":
    raise SystemExit(main())
