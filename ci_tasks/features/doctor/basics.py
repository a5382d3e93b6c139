"""Python, git and bash of a host, and its clock."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor.check_results import FAULT, WARNING, CheckResult, fault, ok, unknown
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers, ago
from ci_tasks.hosts.queries import python_query

PYTHON = (3, 8)  # what the runner is written for
GIT = (2, 17)  # 2018: the oldest whose `worktree` and `index-pack` we rely on
CLOCK = "clock"
CLOCK_QUERY = python_query("import time; print(repr(time.time()))")
TOLERATED_SKEW = 2.0  # seconds; below that nobody sees a difference between the times of a host's log and ours
FATAL_SKEW = 300.0  # seconds; signed downloads and Kerberos give up at five minutes

# The modules are those that a Python built by hand lacks, and the runner cannot do without.
_VERSION = 'import sys; print("%d.%d.%d" % sys.version_info[:3]); import fcntl, json, zlib'


def facts() -> list[HostFact]:
    python_step = f"install Python {_dotted(PYTHON)} or newer as python3; ci-tasks needs it on the host"
    git_step = f"install git {_dotted(GIT)} or newer; the working tree is transferred with it"
    return [
        _program("Python", python_query(_VERSION), PYTHON, python_step),
        _program("git", ["git", "--version"], GIT, git_step),
        _program("bash", ["bash", "--version"], (), "install bash; CI's steps are written for it"),
    ]


def read_clock(answer: QueryAnswer, before: float, after: float) -> list[CheckResult]:
    """The host's time against ours before and after the query: its skew lies between."""
    try:
        there = float(answer.out)
    except ValueError:
        return [unknown("clock", answer.last_line)]
    skew = there - before if there < before else max(0.0, there - after)
    if abs(skew) <= TOLERATED_SKEW:
        return [ok("clock", f"as here, within {max(after - before, 0.1):.1f} s")]
    status = WARNING if abs(skew) <= FATAL_SKEW else FAULT
    off = f"{ago(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine"
    harm = "times of its runs are off" if status == WARNING else "certificates and signed downloads are refused"
    return [
        CheckResult(
            "clock", status, f"{off}: {harm}", "compare both with `timedatectl`; `sudo timedatectl set-ntp true`"
        )
    ]


def version(text: str) -> tuple[int, ...]:
    """The first dotted number in a program's output; empty where there is none."""
    match = re.search(r"\d{1,9}(?:\.\d{1,9})+", text)
    return tuple(int(digits) for digits in match[0].split(".")) if match else ()


def _program(name: str, query: Sequence[str], oldest: tuple[int, ...], install: str) -> HostFact:
    """Whether a program is there and new enough. `query` makes it print its version."""

    def parse(answers: QueryAnswers) -> list[CheckResult]:
        answer = answers[name.lower()]
        number = version(answer.out)
        if number and number < oldest:
            return [fault(name, f"{_dotted(number)}, older than {_dotted(oldest)}", install)]
        if not number or answer.code != 0:
            return [fault(name, answer.last_line, install)]
        return [ok(name, _dotted(number))]

    return HostFact({name.lower(): query}, parse)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
