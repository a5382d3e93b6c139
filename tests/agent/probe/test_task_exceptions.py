"""Exceptions that a worker catches and hands to another process: each has its kind, and none is said to be uncaught."""

from __future__ import annotations

import ast
from pathlib import Path

from ci_tasks.agent.probe.evidence import payload
from tests.agent.probe.interpreters import Interpreter, make_interpreter

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


def test_a_ray_worker_notes_the_exception_of_a_task_with_its_frames(tmp_path: Path) -> None:
    """The copy that somebody else gets has no frames: there it is not noted as a task's."""
    python = make_interpreter(tmp_path)
    python.install(ray__exceptions=RAY)
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
    assert [(frame.function, frame.line) for frame in first.frames] == [("<module>", 9), ("step", 5)]
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


WRAPPER = "class ExceptionWrapper:\n def __init__(self, exc_info=None, where='x'):\n  self.where = where\n"


def test_torchs_workers_note_what_they_catch(tmp_path: Path) -> None:
    """Of a data set, say: torch makes this object of it for the process that wants the next batch."""
    python = make_interpreter(tmp_path)
    python.install(torch___utils=WRAPPER)
    text = """
import torch._utils
try:
    {}["no such sample"]
except KeyError:
    print(torch._utils.ExceptionWrapper(where="in DataLoader worker process 0").where)
"""
    assert python("-c", text)[:2] == (0, "in DataLoader worker process 0\n")
    assert noted(python) == [("task", "torch", "in DataLoader worker process 0", "'no such sample'")]


def test_many_exceptions_of_tasks_leave_room_for_the_one_that_ends_the_program(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    python.install(torch___utils=WRAPPER)
    text = """
import torch._utils
def fail(depth):
    if depth:
        fail(depth - 1)
    raise ValueError("x" * 5000) from OSError("y" * 5000)
for _ in range(40):
    try:
        fail(60)
    except ValueError:
        torch._utils.ExceptionWrapper()
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
    assert 2 < len(process.exceptions) <= 21, "no more than there is room for"


def test_the_names_of_the_payloads_modules_do_not_collide_in_the_file_that_they_become() -> None:
    names = [name for node in ast.parse(payload()).body for name in _top_level_names(node)]
    assert {name for name in names if names.count(name) > 1} == {"TYPE_CHECKING"}


def _top_level_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
