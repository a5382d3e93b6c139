"""Completion, as the shells ask for it: real bash and zsh, and the words that are offered as data."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.cli.program import candidates
from tests.fixtures import cannot

ROOT = Path(__file__).resolve().parents[2]
HOSTS = """
hosts:
  sim: {kind: local, runtime: none, gpus: 8, simulate: true}
  box-a: {kind: ssh, address: a}
  box-b: {kind: ssh, address: b}
pools:
  boxes: [box-a, box-b]
"""
# What was typed up to the cursor → what is offered there.
OFFERED = {
    "ci-tasks repr": ["reproduce"],
    "ci-tasks run": ["run", "runs"],
    "ci-tasks run ck": ["ckpt"],
    "ci-tasks plan cha": ["changed", "changed-detect"],
    "ci-tasks jobs --repo examples/tiny-slime prec": ["precision"],
    "ci-tasks run ckpt --only async": ["async-save"],
    "ci-tasks run run-ci-ckpt --only async": ["async-save"],
    "ci-tasks remote ckpt --host ": ["box-a", "box-b", "boxes", "local", "sim"],
    "ci-tasks remote ckpt --host box-a,": ["box-a,box-b", "box-a,boxes", "box-a,local", "box-a,sim"],
    "ci-tasks remote ckpt --host=box": ["--host=box-a", "--host=box-b", "--host=boxes"],
    "ci-tasks remote ckpt --host = si": ["sim"],  # bash's words for --host=si
    "ci-tasks remote ckpt --re": ["--repeat", "--repo", "--resume", "--retry-failed", "--rev"],
    "ci-tasks remote ckpt --fresh-env --host sim --fre": [],
    "ci-tasks verl --env A=1 --en": ["--env"],
    "ci-tasks verl --level ": ["0", "1", "2", "3", "4", "5"],
    "ci-tasks runs --status failed,l": ["failed,lost"],
    "ci-tasks logs l": ["last"],
    "ci-tasks logs 20260102": ["20260102-000002-ckpt"],
    "ci-tasks logs 20260102-000002-ckpt.": ["20260102-000002-ckpt.01"],
    "ci-tasks verl --variant de": ["dense"],
    "ci-tasks triage ": [],  # a file: the shell's own
    "ci-tasks nosuch --ho": [],
    "ci-tasks --": ["--debug", "--help", "--list", "--print-completion-script", "--version"],
    "ci-tasks --help tria": ["triage"],
    "ci-tasks --print-completion-script z": ["zsh"],
    "ci-tasks run --repo /no/such/place ck": [],
}
# The same, as TAB changes the line; a case for each way in which shells differ.
COMPLETED = {
    "ci-tasks repr": "ci-tasks reproduce ",
    "ci-tasks remote ckpt --host box-a,si": "ci-tasks remote ckpt --host box-a,sim ",
    "ci-tasks remote ckpt --host=boxe": "ci-tasks remote ckpt --host=boxes ",
    "ci-tasks jobs --repo example": "ci-tasks jobs --repo examples/",
    "ci-tasks run --repo /no/such/place ck": "ci-tasks run --repo /no/such/place ck",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty runs, a hosts.yaml of our own, the sample, and a `ci-tasks` on PATH."""
    for day in range(1, 31):
        (tmp_path / f"home/runs/202601{day:02d}-{day:06d}-ckpt/01").mkdir(parents=True)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    program = tmp_path / "bin/ci-tasks"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from ci_tasks.cli.program import main; main()" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CI_TASKS_HOSTS", str(tmp_path / "hosts.yaml"))
    monkeypatch.setenv("CI_TASKS_REPO", str(ROOT / "examples/tiny-slime"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(ROOT)
    return tmp_path


def offered(line: str) -> list[str]:
    *before, current = line.split(" ")[1:]
    return candidates(before, current)


@pytest.mark.parametrize("line", OFFERED)
def test_candidates_of_a_word(line: str, home: Path) -> None:
    assert offered(line) == OFFERED[line]


def test_of_a_rows_name_only_what_no_shell_executes_is_offered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash inserts a candidate as it is."""
    workflow = home / "checkout/.github/workflows/pr-test.yml"
    workflow.parent.mkdir(parents=True)
    names = ["$(touch x)", "`touch x`", "a;touch y", "a\\ntouch z", "--host=evil", "~evil"]
    matrix = ", ".join(f'{{name: "{name}"}}' for name in names)
    workflow.write_text(
        f"on: push\njobs:\n  e2e-test-x:\n    name: ${{{{ matrix.info.name }}}}\n    runs-on: x\n"
        f"    strategy: {{matrix: {{info: [{matrix}]}}}}\n    steps: [{{run: x}}]\n"
    )
    monkeypatch.chdir(home)
    words = offered("ci-tasks run x --repo checkout --only ")
    assert "touch" in words
    assert not [word for word in words if re.search(r"^-|[^\w.=]", word)]


def test_the_newest_twenty_batches_are_offered_and_older_ones_by_prefix(home: Path) -> None:
    assert offered("ci-tasks attach ") == [*(f"202601{day:02d}-{day:06d}-ckpt" for day in range(11, 31)), "last"]
    assert len(offered("ci-tasks attach 2026")) == 30


@pytest.mark.parametrize("broken", ["hosts: {sim: {kind: nonsense}}", "\x00", None])
def test_an_error_gives_no_candidates(broken: str | None, home: Path) -> None:
    file = home / "hosts.yaml"
    file.unlink() if broken is None else file.write_text(broken)
    assert offered("ci-tasks remote ckpt --host ") == []


class Terminal:
    """A shell on a terminal, in which ^T prints the line as it stands, in angle brackets, and empties it."""

    def __init__(self, command: list[str], setup: str) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execvp(command[0], command)
        self.text = ""
        os.write(self.fd, f"{setup}; echo rea''dy\n".encode())
        self.until("ready")

    def until(self, pattern: str) -> str:
        ends = time.monotonic() + 60
        while not (match := re.search(pattern, self.text, re.DOTALL)):
            assert time.monotonic() < ends, f"no {pattern} in {self.text!r}"
            if select.select([self.fd], [], [], 1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        self.text = ""
        return match[0]

    def completed(self, line: str) -> str:
        os.write(self.fd, f"{line}\t\x14".encode())
        return self.until("<<<.*>>>")[3:-3]

    def close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)


# The quotes inside of <<< keep the echo of what is typed here from being taken for an answer.
_BASH = r"""PS1='> '; bind -x '"\C-t": printf "\n<<""<%s>"">>\n" "$READLINE_LINE"; READLINE_LINE='"""
_ZSH = """PS1='> '; autoload -Uz compinit && compinit -u -D; unsetopt zle_bracketed_paste;
dump() { print -r -- "<<""<$BUFFER>"">>"; BUFFER= }; zle -N dump; bindkey '^T' dump"""
SHELLS = {"bash": (["bash", "--norc", "--noprofile", "-i"], _BASH), "zsh": (["zsh", "-f", "-i"], _ZSH)}


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, home: Path) -> Iterator[Terminal]:
    command, setup = SHELLS[request.param]
    if not shutil.which(command[0]):
        cannot(f"there is no {command[0]} on this machine")
    terminal = Terminal(command, f'{setup}; eval "$(ci-tasks --print-completion-script {request.param})"')
    yield terminal
    terminal.close()


def test_a_tab_completes_the_typed_word_and_prints_no_error(terminal: Terminal) -> None:
    assert {line: terminal.completed(line) for line in COMPLETED} == COMPLETED
