"""The probe in real interpreters: what it sees, and that a program behaves as without it, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent.probe.records import ProcessEvidence
from tests.agent.conftest import wait_until
from tests.agent.probe.interpreters import Interpreter, add_probe, make_interpreter, pythons

PROGRAM = """\
import multiprocessing, sys, threading, unittest

def fail():
    raise KeyError("in a thread")

def work():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise RuntimeError("at work: \\u00e9 \\U0001f600 \\"\\n") from error

if __name__ == "__main__":
    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
    work()
"""


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    return make_interpreter(tmp_path)


def script(interpreter: Interpreter, text: str, name: str = "program.py") -> str:
    path = interpreter.venv.parent / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def failures(process: ProcessEvidence) -> list[tuple[str, str]]:
    return [(failure.where, failure.chain[0].type) for failure in process.exceptions]


@pytest.mark.parametrize("base", pythons(), ids=lambda base: Path(base).parts[-3] if "pyenv" in base else "own")
def test_every_python_tells_its_processes_their_failures_and_their_ends(tmp_path: Path, base: str) -> None:
    python = make_interpreter(tmp_path, base)
    path = script(python, PROGRAM)
    code, _, errors = python(path)
    plain = subprocess.run([base, path], capture_output=True, text=True, check=False)
    assert (code, _without_pids(errors)) == (plain.returncode, _without_pids(plain.stderr))

    processes = python.processes()
    main = processes[0]
    workers = [process for process in processes if process.end == "worker"]
    assert [process.forked for process in workers] == [True, False]
    assert main.argv == (python.program, path) and main.end == "exit"
    assert {process.parent for process in workers} == {main.key}
    assert failures(main) == [("thread", "builtins.KeyError"), ("main", "builtins.RuntimeError")]
    assert main.exceptions[0].name == "loader"
    assert [failures(process) for process in workers] == [[("worker", "builtins.RuntimeError")]] * 2
    error, cause = main.exceptions[1].chain
    assert error.message == 'at work: \u00e9 \U0001f600 "\n'
    assert [(frame.function, frame.line) for frame in error.frames] == [("<module>", 20), ("work", 10)]
    assert cause.type == "builtins.ZeroDivisionError"
    assert {module.name for module in main.imports} == {"unittest"}
    assert main.packages in python.evidence().packages
    assert python.evidence().counted == len(processes)


def _without_pids(text: str) -> str:
    """The same program's messages: names of threads' addresses differ."""
    return "\n".join(line for line in text.splitlines() if "Process Spawn" not in line and "~~" not in line)


def test_nothing_but_built_in_modules_is_imported_before_the_program(tmp_path: Path) -> None:
    """A program's own types.py would else not be the one that the library gets."""
    python = make_interpreter(tmp_path, probe=False)
    list_modules = "import sys; print(sorted(sys.modules))"
    before = python("-c", list_modules)[1]
    add_probe(python)
    more = set(eval(python("-c", list_modules)[1])) - set(eval(before))
    # `site` of newer versions reads each .pth with this codec, of a package that every process has.
    assert more - {"encodings.utf_8_sig"} <= {"ci_tasks_probe", *sys.builtin_module_names}


@pytest.mark.parametrize(
    ("words", "seen"),
    [(("-c", "pass"), 1), (("-I", "-c", "pass"), 1), (("-E", "-s", "-c", "pass"), 1), (("-S", "-c", "pass"), 0)],
)
def test_an_isolated_interpreter_is_seen_and_one_without_site_is_not(
    python: Interpreter, words: tuple[str, ...], seen: int
) -> None:
    assert python(*words) == (0, "", "")
    assert len(python.processes()) == seen


def test_the_environment_does_not_matter_but_its_ranks_and_devices_are_noted(python: Interpreter) -> None:
    """As torchrun starts a worker, and Ray one whose PYTHONPATH is its own."""
    env = {"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5", "SECRET": "x", "PYTHONPATH": "/Megatron-LM"}
    assert python("-c", "import unittest, os; os.environ['RANK'] = '4'; import json", env=env)[0] == 0
    process = python.only_process()
    assert process.rank == 4
    assert dict(process.env) == {"RANK": "4", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5"}


def test_a_program_may_close_all_files_and_open_its_own(python: Interpreter) -> None:
    """What is written later goes to none of the program's files."""
    text = f"""
import os, unittest
os.closerange(3, 5000)
mine = [os.open({str(python.venv.parent)!r} + "/mine", os.O_CREAT | os.O_WRONLY) for _ in range(3)]
while mine[-1] < 1010:
    mine.append(os.dup(mine[0]))
1 / 0
"""
    assert python("-c", text)[0] == 1
    assert (python.venv.parent / "mine").read_bytes() == b""
    assert failures(python.only_process()) == [("main", "builtins.ZeroDivisionError")]


def test_a_process_that_becomes_another_program_is_one_process(python: Interpreter) -> None:
    text = """
import os, sys
words = [sys.executable, "-c", "pass"]
if not os.fork():
    os.execv(words[0], words)
os.wait()
import unittest, json
os.execv(words[0], words)
"""
    assert python("-c", text) == (0, "", "")
    first, child, last = python.processes()
    assert (first.end, child.end, last.end) == ("exec", "exit", "exit")
    assert first.key == last.key and child.argv[1:] == ("-c", "pass") and not child.forked


def test_the_signal_writes_the_stacks_of_all_threads(python: Interpreter) -> None:
    text = """
import os, queue, sys, threading
def wait_for_work():
    queue.Queue().get()
threading.Thread(target=wait_for_work, daemon=True).start()
child = os.fork()
print(child or "", end=" ", flush=True)
threading.Event().wait()
"""
    with python.start("-u", "-c", text) as process:
        wait_until(lambda: len(python.processes()) == 2)
        main, child = python.processes()
        for each in (main, child):
            assert each.signal == signal.SIGRTMIN + 7
        os.kill(main.pid, main.signal)
        os.kill(child.pid, child.signal)
        # The file is still the process's own.
        stacks = [Path(os.readlink(f"/proc/{each.pid}/fd/{each.descriptor}")) for each in (main, child)]
        wait_until(lambda: all("<module>" in path.read_text() for path in stacks))
        main_stacks, child_stacks = (path.read_text().partition("Current thread")[2] for path in stacks)
        assert "in wait_for_work" in stacks[0].read_text() and "in wait" in main_stacks
        assert "in wait_for_work" not in stacks[1].read_text() and "in wait" in child_stacks
        assert process.poll() is None
        os.kill(child.pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_hooks_of_a_program_are_called_and_look_as_without_the_probe(python: Interpreter) -> None:
    text = """
import sys, threading
assert sys.excepthook is sys.__excepthook__
assert getattr(threading, "__excepthook__", threading.excepthook) is threading.excepthook
before = sys.excepthook
def hook(*values):
    print("mine")
    before(*values)
sys.excepthook = hook
raise ValueError("x")
"""
    assert python(script(python, text))[:2] == (1, "mine\n")
    assert failures(python.only_process()) == [("main", "builtins.ValueError")]


@pytest.mark.parametrize("refs", ["refs/heads/main", "packed-refs"])
def test_imported_packages_have_their_origin_version_and_commit(python: Interpreter, tmp_path: Path, refs: str) -> None:
    python.install(torch__data="")
    (python.packages / "torch-2.11.0+cu128.dist-info").mkdir()
    tree = tmp_path / "tree"
    for name in ("slime", "megatron/core"):
        (tree / name).mkdir(parents=True)
        (tree / name / "__init__.py").write_text("__version__ = '0.9'\n")
    (tree / ".git" / "refs" / "heads").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    packed = f"# pack-refs with: peeled fully-peeled sorted\n{'b' * 40} refs/heads/a\n{'a' * 40} refs/heads/main\n"
    (tree / ".git" / refs).write_text(packed if refs == "packed-refs" else "a" * 40 + "\n")
    text = "import torch, slime, importlib.util, megatron.core; importlib.util.find_spec('special'); import special\n"
    assert python("-c", text, env={"PYTHONPATH": f"{tree}"})[0] == 1  # there is no `special`
    process = python.only_process()
    noted = [(module.name, module.package_version) for module in process.imports]
    assert noted[:3] == [("torch", "2.11.0+cu128"), ("slime", ""), ("megatron.core", "")]
    found = {module.name: module for module in process.imports}
    assert (found["torch"].origin, found["torch"].commit) == (str(python.packages / "torch" / "__init__.py"), "")
    assert (found["slime"].package_version, found["slime"].commit) == ("0.9", "a" * 40)
    assert python.evidence().packages[process.packages]["torch"] == "2.11.0+cu128"


def test_a_package_that_is_only_searched_for_is_not_noted(python: Interpreter) -> None:
    python.install(torch__cuda="")
    assert python("-c", "import importlib.util; print(importlib.util.find_spec('torch').name)")[1] == "torch\n"
    assert python.only_process().imports == ()


def test_peaks_of_gpu_memory_are_asked_of_a_torch_that_is_initialized(python: Interpreter) -> None:
    python.install(
        torch__cuda="is_initialized = lambda: ready\ndevice_count = lambda: 2\nready = False\n"
        "max_memory_reserved = lambda device: device * 30\nmax_memory_allocated = lambda device: device * 20\n"
        "get_device_properties = lambda device: type('P', (), {'uuid': 'bd0d9e3d-cbbe'})\n"
    )
    assert python("-c", "import torch.cuda")[0] == 0
    assert python("-c", "import torch.cuda; torch.cuda.ready = True")[0] == 0
    first, second = python.processes()
    assert first.memory == ()
    assert [(each.device, each.allocated, each.reserved, each.uuid) for each in second.memory] == [
        (1, 20, 30, "GPU-bd0d9e3d-cbbe")
    ]
