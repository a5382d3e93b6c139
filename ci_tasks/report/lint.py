"""Findings of lint as text, GitHub annotations, and SARIF for code scanning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ci_tasks.errors import printable

Shown = dict[str, Any]  # a finding as its `public()` gives it


def text(findings: Sequence[Shown]) -> list[str]:
    """Each finding with its fix; why a rule matters once, before its first finding."""
    lines: list[str] = []
    for rule in dict.fromkeys(one["rule"] for one in findings):
        mine = [one for one in findings if one["rule"] == rule]
        lines += ["", f"{rule} ({mine[0]['level']}): {mine[0]['why']}"]
        for one in mine:
            lines += [f"  {one['file']}:{one['line']}: {one['message']}", f"    fix: {one['fix']}"]
    return [printable(line) for line in lines]


def summary(findings: Sequence[Shown], known: int) -> str:
    """`12 findings: 8 runs-nothing, …`."""
    counts = {rule: sum(one["rule"] == rule for one in findings) for rule in dict.fromkeys(o["rule"] for o in findings)}
    parts = ", ".join(f"{count} {rule}" for rule, count in counts.items())
    said = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}: {parts}" if findings else "no finding"
    return f"{said}; {known} more in the baseline" if known else said


def github(findings: Sequence[Shown]) -> list[str]:
    """Workflow commands of GitHub Actions, which show each finding at its line of the pull request."""
    return [
        f"::{one['level']} file={_property(one['file'])},line={one['line']},title={_property(one['rule'])}::"
        + _data(f"{one['message']}. {one['why']}. Fix: {one['fix']}")
        for one in findings
    ]


def sarif(findings: Sequence[Shown], rules: Sequence[Shown], version: str) -> str:
    """SARIF 2.1.0. `rules` are {id, title, why, is_error}."""
    order = {rule["id"]: at for at, rule in enumerate(rules)}
    driver = {
        "name": "ci-tasks lint",
        "version": version,
        "rules": [
            {
                "id": rule["id"],
                "shortDescription": {"text": rule["title"]},
                "fullDescription": {"text": rule["why"]},
                "defaultConfiguration": {"level": "error" if rule["is_error"] else "warning"},
            }
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": one["rule"],
            "ruleIndex": order[one["rule"]],
            "level": one["level"],
            "message": {"text": f"{one['message']}. Fix: {one['fix']}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": one["file"], "uriBaseId": "%SRCROOT%"},
                        "region": {"startLine": one["line"]},
                    }
                }
            ],
            "partialFingerprints": {"ciTasks/v1": f"{one['rule']}|{one['file']}|{one['subject']}"},
        }
        for one in findings
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}],
    }
    return json.dumps(log, indent=1, ensure_ascii=True)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
