"""Exceptions that whoever ran the task has caught: each has its kind, and none is said to be uncaught."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from ci_tasks.agent.probe.install import payload
from tests.agent.probe.interpreters import Interpreter, make_interpreter, pythons

PROGRAM = """\
import asyncio, concurrent.futures, gc, sys

def fail(text):
    raise ValueError(text)

async def broken(text):
    fail(text)

async def main():
    asyncio.ensure_future(broken("nobody waits"))
    for asked in (broken("awaited"), asyncio.get_running_loop().run_in_executor(None, fail, "in the pool")):
        try:
            await asked
        except ValueError:
            pass
    asyncio.get_running_loop().call_soon(fail, "in a callback")
    await asyncio.sleep(0.01)

class Finalized:
    def __del__(self):
        fail("in a finalizer")

asyncio.run(main())
gc.collect()
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(fail, "dropped")
    kept, asked = pool.submit(fail, "kept"), pool.submit(fail, "asked")
Finalized()
assert sys.unraisablehook is sys.__unraisablehook__
assert isinstance(concurrent.futures.Future(), concurrent.futures.Future) and "ValueError" in repr(asked)
asked.result()
"""

# As Ray's own: a worker makes it around the exception of a task, and whoever asks for the result gets a copy.
RAY = """\
class RayTaskError(Exception):
    def __init__(self, function_name, traceback_str, cause, proctitle=None, pid=None, ip=None, actor_repr=None):
        self.cause = cause
        self.args = (function_name, traceback_str, cause, proctitle, pid, ip)
"""
RAY_PROGRAM = """\
import os, pickle
import ray.exceptions

def step():
    {}["missing"]

os.environ["RANK"] = "3"
try:
    step()
except KeyError as error:
    made = ray.exceptions.RayTaskError("step", "text", error, proctitle="ray::Trainer.step", actor_repr=None)
    copy = pickle.loads(pickle.dumps(made))
print(type(copy).__init__.__qualname__, copy.args[0])
raise copy
"""


def noted(python: Interpreter) -> list[tuple[str, str, str, str]]:
    [process] = python.processes()
    return [
        (failure.kind, failure.where, failure.name.partition(" at ")[0], failure.chain[0].message)
        for failure in process.exceptions
    ]


@pytest.mark.parametrize("base", pythons(), ids=lambda base: Path(base).parts[-3] if "pyenv" in base else "own")
def test_every_python_tells_kinds_apart_and_prints_the_same(tmp_path: Path, base: str) -> None:
    python = make_interpreter(tmp_path, base)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, _, errors = python(str(program))
    plain = subprocess.run([base, program], capture_output=True, text=True, check=False)
    assert (code, _without_addresses(errors)) == (plain.returncode, _without_addresses(plain.stderr))
    assert [(*kind, message) for *kind, _, message in noted(python)] == [
        ("unretrieved", "asyncio", "nobody waits"),
        ("callback", "asyncio", "in a callback"),
        ("unretrieved", "future", "dropped"),
        ("unraisable", "interpreter", "in a finalizer"),
        ("uncaught", "main", "asked"),
        ("unretrieved", "future", "kept"),
    ]
    names = [name for _, _, name, _ in noted(python)]
    assert names[0] == "broken" and names[1].startswith("Exception in callback fail(")
    assert names[3].startswith("ignored ") and "Finalized.__del__" in names[3]
    frames = [frame.function for frame in python.only_process().exceptions[5].chain[0].frames]
    assert (frames[0], frames[-1]) == ("run", "fail")


def _without_addresses(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "0x" not in line and "~~" not in line)


def test_a_ray_worker_notes_the_exception_of_a_task_with_its_frames(tmp_path: Path) -> None:
    """The copy that somebody else gets has no frames: there it is not noted as a task's."""
    python = make_interpreter(tmp_path)
    (python.packages / "ray").mkdir()
    (python.packages / "ray" / "__init__.py").write_text("")
    (python.packages / "ray" / "exceptions.py").write_text(RAY)
    program = tmp_path / "program.py"
    program.write_text(RAY_PROGRAM)
    code, out, _ = python(str(program))
    assert (code, out) == (1, "RayTaskError.__init__ step\n")
    process = python.only_process()
    assert [(kind, where, name) for kind, where, name, _ in noted(python)] == [
        ("task", "ray", "ray::Trainer.step"),
        ("uncaught", "main", ""),
    ]
    first = process.exceptions[0].chain[0]
    assert [frame.source for frame in first.frames] == ["step()", '{}["missing"]']
    assert process.rank == 3


POOLS = """\
import concurrent.futures, multiprocessing

def work(text):
    raise ValueError(text)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        assert "work" in str(executor.submit(work, "in an executor").exception().__cause__)
    with context.Pool(1) as pool:
        pool.apply_async(work, ("in a pool",)).wait()
"""


def test_workers_of_process_pools_note_what_their_tasks_raise(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(POOLS)
    assert python(str(program)) == (0, "", "")
    noted = [(process, failure) for process in python.processes() for failure in process.exceptions]
    assert [(failure.kind, failure.where, failure.chain[0].message) for _, failure in noted] == [
        ("task", "pool", "in an executor"),
        ("task", "pool", "in a pool"),
    ]
    assert all(process.forked and failure.chain[0].frames[-1].function == "work" for process, failure in noted)


def test_torchs_workers_note_what_they_catch(tmp_path: Path) -> None:
    """Of a data set, say: torch makes this object of it for the process that wants the next batch."""
    python = make_interpreter(tmp_path)
    (python.packages / "torch").mkdir()
    (python.packages / "torch" / "__init__.py").write_text("")
    wrapper = "class ExceptionWrapper:\n def __init__(self, exc_info=None, where='x'):\n  self.where = where\n"
    (python.packages / "torch" / "_utils.py").write_text(wrapper)
    text = """
import torch._utils
try:
    {}["no such sample"]
except KeyError:
    print(torch._utils.ExceptionWrapper(where="in DataLoader worker process 0").where)
"""
    assert python("-c", text)[:2] == (0, "in DataLoader worker process 0\n")
    assert noted(python) == [("task", "torch", "in DataLoader worker process 0", "'no such sample'")]


def test_a_child_does_not_note_the_futures_of_its_parent(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    text = """
import concurrent.futures, os
future = concurrent.futures.Future()
future.set_exception(ValueError("the parent's"))
if not os.fork():
    raise SystemExit
os.wait()
future.exception()
"""
    assert python("-c", text) == (0, "", "")
    assert [process.exceptions for process in python.processes()] == [(), ()]


def test_many_exceptions_of_tasks_leave_room_for_the_one_that_ends_the_program(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    text = """
import concurrent.futures
def fail(depth):
    if depth:
        fail(depth - 1)
    raise ValueError("x" * 5000) from OSError("y" * 5000)
for _ in range(100):
    concurrent.futures.Future().set_exception(ValueError("x" * 3000))
class Finalized:
    def __del__(self):
        fail(60)
for _ in range(40):
    Finalized()
reason = None
for number in range(12):
    cause, reason = reason, SystemError(str(number) * 3000)
    reason.__cause__ = cause
raise reason
"""
    program = tmp_path / "program.py"
    program.write_text(text)
    assert python(str(program))[0] == 1
    process = python.only_process()
    assert len(process.exceptions[-1].chain) == 12 and process.end == "exit"
    assert 20 <= len(process.exceptions) <= 41


def test_the_names_of_the_payloads_modules_do_not_collide_in_the_file_that_they_become() -> None:
    names = [name for node in ast.parse(payload()).body for name in _top_level_names(node)]
    assert {name for name in names if names.count(name) > 1} == {"TYPE_CHECKING"}


def _top_level_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
