"""Without execution, only what the syntax tree shows directly is used."""

from __future__ import annotations

import pytest

from ci_tasks.features.recorder.records import Value
from ci_tasks.features.recorder.syntax import read_source

HEAD = "import os, subprocess as s\nimport a.helpers as U\nfrom a.helpers import go\nNAME = 'Qwen'\nSIZE = 8\n"
HELPERS = {"go": ["cmd", "gpus"]}

# Body → the first argument of its last call.
SHOWN: dict[str, Value] = {
    "go('x')": "x",
    "U.go(f'get {NAME}-{SIZE}')": "get Qwen-8",
    "go('a' + NAME)": "aQwen",
    "def f():\n    path = f'/m/{NAME}'\n    go(path)": "/m/Qwen",
    "go(f'{os.getpid()} x')": "⟨os.getpid()⟩ x",
    "for n in range(2):\n    go(f'{n}')": "⟨n⟩",
    "n = 1\nn = 2\ngo(n)": "⟨n⟩",  # assigned twice: which one is not shown
    "go(cmd='x')": "x",
}


@pytest.mark.parametrize("body", SHOWN)
def test_an_argument_is_shown_or_stands_as_its_expression(body: str) -> None:
    (call,) = (
        candidate
        for candidate in read_source(f"{HEAD}{body}\n", "tests/a.py", HELPERS).calls
        if candidate.function == "go"
    )
    assert call.kwargs["cmd"] == SHOWN[body]


def test_names_are_followed_to_what_is_imported() -> None:
    recording = read_source(f"{HEAD}s.run(['a', NAME])\nlocal()\nx.run()\n", "tests/a.py", HELPERS)
    assert [(call.target, call.commands) for call in recording.calls] == [("subprocess.run", [["a", "Qwen"]])]
    assert recording.calls[0].place == "tests/a.py:6"


@pytest.mark.parametrize("source", ["def broken(:\n", "a = '\0'\n", "a = " + "(" * 5000 + ")" * 5000])
def test_a_file_that_is_not_python_has_a_problem(source: str) -> None:
    assert read_source(source, "tests/a.py", {}).stops


@pytest.mark.parametrize("source", ["a = 'x'\n" + "a = a + a\n" * 99, "b = " + " + ".join(["'x'"] * 3000) + "\n"])
def test_a_text_does_not_grow_without_end(source: str) -> None:
    assert all(len(str(value)) <= 50_000 for value in read_source(source, "tests/a.py", {}).constants.values())
