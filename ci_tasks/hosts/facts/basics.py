"""Python, git and bash of a host, and its clock."""

from __future__ import annotations

import re

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts.fact import Answers, Fact, ago, python
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding

PYTHON = (3, 8)  # what the runner is written for
GIT = (2, 17)  # 2018: the oldest whose `worktree` and `index-pack` we rely on
CLOCK = "clock"
CLOCK_QUESTION = python("import time; print(repr(time.time()))")
NOTICED = 2.0  # seconds; below that nobody sees a difference between the times of a host's log and ours
REFUSED = 300.0  # seconds; signed downloads and Kerberos give up at five minutes

# The modules are those that a Python built by hand lacks, and the runner cannot do without.
_VERSION = 'import sys; print("%d.%d.%d" % sys.version_info[:3]); import fcntl, json, zlib'


def facts() -> list[Fact]:
    return [
        Fact({"python": python(_VERSION)}, _python),
        Fact({"git": ["git", "--version"]}, _git),
        Fact({"bash": ["bash", "--version"]}, _bash),
    ]


def read_clock(answer: Answer, before: float, after: float) -> list[Finding]:
    """The host's time against ours before and after it was asked: the truth about its skew lies between."""
    try:
        there = float(answer.out)
    except ValueError:
        return [Finding("clock", UNKNOWN, answer.said)]
    skew = there - before if there < before else max(0.0, there - after)
    if abs(skew) <= NOTICED:
        return [Finding("clock", OK, f"as here, within {max(after - before, 0.1):.1f} s")]
    status = WARNING if abs(skew) <= REFUSED else FAULT
    off = f"{ago(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine"
    harm = "times of its runs are off" if status == WARNING else "certificates and signed downloads are refused"
    return [
        Finding("clock", status, f"{off}: {harm}", "compare both with `timedatectl`; `sudo timedatectl set-ntp true`")
    ]


def version(text: str) -> tuple[int, ...]:
    """The first dotted number of a program's words; empty where it says none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(digits) for digits in found[0].split(".")) if found else ()


def _python(answers: Answers) -> list[Finding]:
    answer = answers["python"]
    found = version(answer.out)
    install = f"install Python {_dotted(PYTHON)} or newer as python3; nothing of ours runs on the host without it"
    if found and found < PYTHON:
        return [Finding("Python", FAULT, f"{_dotted(found)}, older than {_dotted(PYTHON)}", install)]
    if not found or answer.code != 0:
        return [Finding("Python", FAULT, answer.said, install)]
    return [Finding("Python", OK, _dotted(found))]


def _git(answers: Answers) -> list[Finding]:
    answer = answers["git"]
    found = version(answer.out) if answer.code == 0 else ()
    install = f"install git {_dotted(GIT)} or newer; the working tree travels through it"
    if not found:
        return [Finding("git", FAULT, answer.said, install)]
    if found < GIT:
        return [Finding("git", FAULT, f"{_dotted(found)}, older than {_dotted(GIT)}", install)]
    return [Finding("git", OK, _dotted(found))]


def _bash(answers: Answers) -> list[Finding]:
    answer = answers["bash"]
    found = version(answer.out) if answer.code == 0 else ()
    if not found:
        return [Finding("bash", FAULT, answer.said, "install bash; CI's steps are written for it")]
    return [Finding("bash", OK, _dotted(found))]


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
