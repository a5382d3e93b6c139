"""What the commands take, and what a person reads who tries them one after the other on the sample, as golden files
have it."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import ROOT
from tests.parts.commands import COMMANDS, options_of_command
from tests.parts.golden import golden, golden_value, plain

HERE = Path(__file__).parent
SESSIONS = HERE / "sessions"
# What is another one on each machine, or each time.
OTHERS = [
    (r'^ *\{\s*"what": "(?:Python|shell variables)",[^}]*\},?\n', ""),
    (r"^ *shell variables:.*\n(?: {8,}.*\n)*|^.*(?:\bPython\b|set in the sh|^ +[\d.]+[KMG]?\t).*\n", ""),
    (r"\b\d{8}-\d{6}-([a-z]+(?:-[a-z]+)*)(?:-\d)?\b", r"RUN-\1"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::[\d.]+(?:\+\d\d:\d\d|Z)?)?|\b\d\d:\d\d:\d\d(?:\.\d+)?", "WHEN"),
    (r"(?<![\w.])(?:\d+ (?:min|h) )?\d+(?:\.\d+)? (?:s|ms|min|h)\b", "N s"),
    (r"(?<![\w.])\d+(?:\.\d+)? ?([KMG]i?B)\b", r"N \1"),
    (r"(?<![0-9a-f])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}(?![0-9a-f])|\b\d{7}\b", "HASH"),
    (r"(?<=\.\d\d)-[0-9a-f]{6}\b", ""),
    (r" {2,}", "  "),
]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_takes_these_options(name: str) -> None:
    shown = {each.name: plain(each.metadata["option"]) for each in fields(options_of_command(name))}
    assert golden_value(HERE / "options.json", name, shown) == shown


@pytest.mark.parametrize("session", sorted(path.name for path in SESSIONS.glob("*.txt")))
def test_what_a_person_reads(person: Any, session: str) -> None:
    """A session's file has the commands, too, behind a dollar sign each. `sh` is for what a person does in between."""
    who = {"NAME": "Ada", "EMAIL": "ada@example.com", "DATE": "2026-01-01T00:00:00Z"}
    person.env |= {f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in who.items()}
    person.env |= {"COLUMNS": "200", "VIRTUAL_ENV": ""}  # paths of any length fit
    person.write(".github/workflows/golden.yml", (SESSIONS / "golden.yml").read_text(encoding="utf-8"))
    places = {shlex.quote(str(person.checkout)): "CHECKOUT", str(person.checkout): "CHECKOUT"}
    places |= {str(person.home): "HOME", str(ROOT): "ROOT"}
    shown, file = "", SESSIONS / session
    commands = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]
    for line in ["$ sh git commit -q --amend --no-edit --reset-author", *commands]:
        command = line[2:].replace("ROOT", str(ROOT))
        if command.startswith("sh "):
            argv, env = ["bash", "-ec", command[3:]], person.environment()
            said = subprocess.run(argv, cwd=person.checkout, env=env, capture_output=True, text=True)
            text, code = said.stdout + said.stderr, said.returncode
        else:
            typed = person.ci_tasks(*shlex.split(command))
            text, code = typed.out + typed.err, typed.code
        for pattern, stands in [*((re.escape(place), name) for place, name in places.items()), *OTHERS]:
            text = re.sub(pattern, stands, text, flags=re.MULTILINE)
        shown += f"{line}\n{text.rstrip()}\nexit code {code}\n\n" if line in commands else ""
    assert golden(file, shown) == shown
