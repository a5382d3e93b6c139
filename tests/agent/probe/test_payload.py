"""The probe in real interpreters: what it writes, that it never disturbs, interpreters that appear while a run goes on,
and a suite's hooks.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.evidence import HookEvent, ProcessEvidence, write_files
from ci_tasks.agent.probe import vanishes
from ci_tasks.agent.records import ProbeRules
from ci_tasks.planning.checkout_files import probe_rules
from ci_tasks.results.probe_evidence import hook_records, probe_summary
from ci_tasks.workflow.suite import Suite
from tests.agent.probe.interpreters import Interpreter, add_probe, make_interpreter, pythons
from tests.results.test_probe_evidence import PLAN

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


def test_a_package_whose_import_fails_is_noted(python: Interpreter) -> None:
    python.install(torch__cuda="")
    (python.packages / "torch" / "__init__.py").write_text("raise OSError('libcudart.so')\n")
    assert python("-c", "import torch")[0] == 1
    assert [module.name for module in python.only_process().imports] == ["torch"]


def test_an_exception_is_noted_by_a_process_that_can_open_no_file(python: Interpreter) -> None:
    text = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))
files = []
while True:
    files.append(open("/dev/null"))
"""
    assert python("-c", text)[0] == 1
    assert [failure.chain[0].type for failure in python.only_process().exceptions] == ["builtins.OSError"]


def test_a_package_that_is_only_searched_for_is_not_noted(python: Interpreter) -> None:
    python.install(torch__cuda="")
    assert python("-c", "import importlib.util; print(importlib.util.find_spec('torch').name)")[1] == "torch\n"
    assert python.only_process().imports == ()


@pytest.fixture(params=[pythons()[0], pythons()[-1]], ids=["oldest", "newest"])
def late(tmp_path: Path, request: pytest.FixtureRequest) -> Interpreter:
    """A venv in the workspace of a run whose probe was written before."""
    python = make_interpreter(tmp_path / "workspace", request.param, probe=False)
    write_files(python.run, ProbeRules(("special",)), str(tmp_path / "workspace"))
    return python


def path_of(python: Interpreter, *more: str) -> dict[str, str]:
    return {"PYTHONPATH": ":".join([python.run.probe + "/start", *more])}


def test_a_new_interpreter_is_seen_and_stays_so_under_a_path_of_the_jobs_own(late: Interpreter) -> None:
    assert late("-c", "pass", env=path_of(late)) == (0, "", "")
    assert late("-c", "raise KeyError(1)", env={"PYTHONPATH": "/nowhere"})[0] == 1
    first, second = late.processes()
    assert (first.executable, second.executable) == (late.program, late.program)
    assert [failure.chain[0].type for failure in second.exceptions] == ["builtins.KeyError"]


def test_program_sees_path_and_the_sitecustomize_that_it_would_have_without(late: Interpreter, tmp_path: Path) -> None:
    program = "import sys; print(sys.path, 'sitecustomize' in sys.modules)"
    plain = make_interpreter(tmp_path / "plain", str(Path(late.venv / "bin/python").resolve()), probe=False)
    before = plain("-c", program, env={"PYTHONPATH": "/a:/b"})[1]
    assert late("-c", program, env=path_of(late, "/a", "/b"))[1] == before.replace(str(plain.venv), str(late.venv))
    theirs = path_of(late, str(late.packages))  # before a sitecustomize of the interpreter, which Debian's has
    late.install(sitecustomize="print('theirs', __name__, 'ci_tasks_probe' in __file__)")
    assert late("-c", "print('program')", env=theirs)[1] == "theirs sitecustomize False\nprogram\n"
    late.install(sitecustomize="raise ValueError('theirs')")
    code, out, err = late("-c", "print('program')", env=theirs)
    assert (code, out) == (0, "program\n") and "ValueError: theirs" in err


def test_an_interpreter_outside_the_run_is_seen_and_nothing_is_written_there(late: Interpreter, tmp_path: Path) -> None:
    outside = make_interpreter(tmp_path / "outside", probe=False)
    files = sorted(outside.packages.iterdir())
    assert outside("-c", "pass", env=path_of(late))[0] == 0
    assert outside("-c", "pass", env={"PYTHONPATH": "/nowhere"})[0] == 0
    assert sorted(outside.packages.iterdir()) == files
    assert [process.executable for process in late.processes()] == [outside.program]


def test_a_probe_that_an_earlier_run_left_is_replaced(late: Interpreter) -> None:
    (late.packages / "ci_tasks_probe.pth").write_text("import sys; exec('import ci_tasks_probe')\n")
    late.install(ci_tasks_probe="_file = None\ndef begin(*words): raise OSError\n")
    late("-c", "pass", env=path_of(late))
    late("-c", "pass", env={})
    assert [process.executable for process in late.processes()] == [late.program] * 2


@pytest.mark.parametrize(("place", "expected"), [("/usr/lib/python3", True), ("/proc/sys", False), ("/proc", False)])
def test_in_a_container_what_is_mounted_stays_as_it_is(place: str, expected: bool) -> None:
    """It may be the host's own Python."""
    assert vanishes(place, ()) is expected


SUITE = Suite(name="toy", packages=("toy",), probe_hook="tests.agent.probe.toy_hook")


@dataclass(frozen=True)
class Config:
    lr: float
    sizes: dict[str, int]
    layers: tuple[int | str, ...]
    text: str


@pytest.fixture
def hooked(tmp_path: Path) -> Interpreter:
    hooked = make_interpreter(tmp_path, probe=False)
    add_probe(hooked, probe_rules(SUITE))
    hooked.install(toy__trainer="LR = 0.5\ndef save(path): print('saved', path)\n", toy__broken="")
    return hooked


def test_a_hook_notes_what_it_sees_and_nothing_is_imported_between(hooked: Interpreter) -> None:
    assert hooked("-c", "import toy.trainer; toy.trainer.save('/ckpt')") == (0, "saved /ckpt\n", "")
    evidence = hooked.evidence()
    [(process, config)] = hook_records(evidence, "toy", "config", Config)
    assert config == Config(0.5, {"tp": 2}, (1, "two", "nan"), "xxx")
    assert process.argv[1] == "-c"
    assert [(event.kind, event.fields) for event in process.hook_events if event.kind == "checkpoint"] == [
        ("checkpoint", '{"path": "/ckpt"}')
    ]
    assert list(hook_records(evidence, "toy", "checkpoint", Config)) == []


def test_what_fails_in_a_hook_is_noted_and_does_not_reach_the_program(hooked: Interpreter) -> None:
    assert hooked("-c", "import toy.broken, toy.trainer; print(toy.trainer.LR)") == (0, "0.5\n", "")
    summary = probe_summary(hooked.evidence(), PLAN, ())
    assert summary is not None
    assert summary.not_seen == (
        "toy: hook failed: RuntimeError: no such trainer",
        "toy: hook failed: ZeroDivisionError: division by zero",
    )


def test_a_process_that_imports_no_such_module_does_not_load_the_hook(hooked: Interpreter) -> None:
    assert hooked("-c", "import toy, sys; print([name for name in sys.modules if 'probe_toy' in name])")[1] == "[]\n"
    assert hooked.only_process().hook_events == ()


def test_fields_of_another_type_are_an_error_that_names_the_line() -> None:
    event = HookEvent(1.0, "toy", "config", '{"lr": "high"}')
    with pytest.raises(RecordError, match="config of toy: lr"):
        event.decode(Config)
