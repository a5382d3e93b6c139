"""What a test launches is recorded as it happens, and what was not reached is said to be not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.syntax import PYTEST, READ, RECORDED, Recording, Value, read_source

Record = Callable[..., Recording]
HEAD = "import os, subprocess\nimport slime.utils.external_utils.command_utils as U\n"


def commands(recording: Recording) -> list[str]:
    return [str(call.kwargs["cmd"]) for call in recording.calls if call.function == "exec_command"]


# Body → the commands that it launches.
LAUNCHED = {
    "a loop": ("for name in 'ab':\n    U.exec_command(f'get {name}')", ["get a", "get b"]),
    "the clock moves by sleep alone": (
        "import time\nend = time.time() + 600\nwhile time.time() < end:\n    time.sleep(60)\nU.exec_command('late')",
        ["late"],
    ),
    "a server comes up": (
        "import urllib.request\np = subprocess.Popen(['server'])\nassert p.poll() is None\n"
        "while urllib.request.urlopen('http://h').status != 200: pass\nU.exec_command('up')",
        ["up"],
    ),
    "a program's output is not known": (
        "U.exec_command(subprocess.check_output(['id']) + f\" x {subprocess.run(['a']).returncode}\")",
        ["⟨subprocess.check_output()⟩ x 0"],
    ),
    "an assertion never ends it": ("assert os.path.exists('/made')\nU.exec_command('after')", ["after"]),
    "a decorator of a package": ("import ray\n@ray.remote\ndef f(): return 'x'\nU.exec_command(f())", ["x"]),
    "CI's container has proxies": ("os.environ.pop('http_proxy')\nU.exec_command('x')", ["x"]),
}  # fmt: skip


@pytest.mark.parametrize("case", LAUNCHED)
def test_a_launch_is_recorded(record: Record, case: str) -> None:
    body, expected = LAUNCHED[case]
    recording = record(HEAD + body + "\n")
    assert commands(recording) == expected
    assert recording.stops == ()


def test_arguments_and_environment_are_the_rows(record: Record) -> None:
    source = (
        "import argparse, os, subprocess\np = argparse.ArgumentParser()\np.add_argument('--save')\n"
        "os.environ['X'] = '1'\n"
        "subprocess.run(['a', p.parse_args().save, os.environ['SIZE']], env={**os.environ, 'Y': '2'})\n"
    )
    (call,) = record(source, "--save", "gpu", SIZE="8").calls
    assert (call.commands, call.env) == ([["a", "gpu", "8"]], {"X": "1", "Y": "2"})


def test_the_test_does_not_get_secrets(record: Record) -> None:
    (call,) = record("import os\nos.system(os.getenv('KEY', 'none'))\n", KEY="<secret KEY>").calls
    assert call.args == ["none"]


def test_a_helper_is_recorded_whole_and_with_its_place(record: Record) -> None:
    source = (
        f"{HEAD}def before():\n    os.system('server')\n"
        "def run():\n    U.execute_train('--a', 8, None, before_ray_job_submit=before)\nrun()\n"
    )
    first, second = record(source).calls
    assert (first.target, second.function) == ("os.system", "execute_train")
    assert {name: second.kwargs[name] for name in ("train_args", "num_gpus_per_node")} == {
        "train_args": "--a",
        "num_gpus_per_node": 8,
    }
    assert second.place == "tests/test_x.py:6"


def test_a_helper_beside_the_test_runs_and_the_framework_does_not(record: Record) -> None:
    files = {
        "tests/shared.py": "import os\ndef run(name):\n    os.system(f'go {name}')\n",
        "slime/big.py": "import os\ndef work():\n    os.system('no')\n",
    }
    recording = record("from shared import run\nfrom slime.big import work\nrun('x')\nwork()\n", files=files)
    assert [call.target for call in recording.calls] == ["os.system", "slime.big.work"]


def test_the_part_after_a_stop_is_not_recorded(record: Record) -> None:
    recording = record(HEAD + "U.exec_command('a')\nos.environ['GONE']\nU.exec_command('b')\n")
    assert commands(recording) == ["a"]
    assert (recording.stops, recording.origin) == (("tests/test_x.py:4: KeyError: 'GONE'",), RECORDED)


def test_a_file_that_pytest_runs_is_only_read(record: Record) -> None:
    source = (
        "import os, pytest\nos.system('now')\ndef test_one():\n    os.system('a')\n"
        "class TestMore:\n    def test_two(self): ...\nif __name__ == '__main__':\n    pytest.main([__file__])\n"
    )
    recording = record(source)
    assert (recording.entry, recording.origin, recording.tests) == (PYTEST, READ, ("test_one", "TestMore.test_two"))


def test_a_recording_without_a_directory_executes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = f"open({str(marker)!r}, 'w')\n"
    assert LaunchRecorder({}, lambda name: source).record("test_x.py").origin == READ
    assert not marker.exists()


IMPORTS = "import os, subprocess as s\nimport a.helpers as U\nfrom a.helpers import go\nNAME = 'Qwen'\nSIZE = 8\n"
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
        for candidate in read_source(f"{IMPORTS}{body}\n", "tests/a.py", HELPERS).calls
        if candidate.function == "go"
    )
    assert call.kwargs["cmd"] == SHOWN[body]


def test_names_are_followed_to_what_is_imported() -> None:
    recording = read_source(f"{IMPORTS}s.run(['a', NAME])\nlocal()\nx.run()\n", "tests/a.py", HELPERS)
    assert [(call.target, call.commands) for call in recording.calls] == [("subprocess.run", [["a", "Qwen"]])]
    assert recording.calls[0].place == "tests/a.py:6"


@pytest.mark.parametrize("source", ["def broken(:\n", "a = '\0'\n", "a = " + "(" * 5000 + ")" * 5000])
def test_a_file_that_is_not_python_has_a_problem(source: str) -> None:
    assert read_source(source, "tests/a.py", {}).stops


@pytest.mark.parametrize("source", ["a = 'x'\n" + "a = a + a\n" * 99, "b = " + " + ".join(["'x'"] * 3000) + "\n"])
def test_a_text_does_not_grow_without_end(source: str) -> None:
    assert all(len(str(value)) <= 50_000 for value in read_source(source, "tests/a.py", {}).constants.values())
