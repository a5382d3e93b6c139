"""What the record has of a run's processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.evidence import (
    CodeFrame,
    ImportedModule,
    LinkedException,
    NotedException,
    ProcessEvidence,
    RunEvidence,
    collect_evidence,
)
from ci_tasks.agent.records import Checkout, Deviation, DockerInvocation, Overlay, ProbeOverlay, RunDescription
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.records import Attempt, ProbeSummary, RunEnvironment, RunRecord
from ci_tasks.results import probe_evidence
from ci_tasks.results.probe_evidence import probe_summary, with_imports, with_overlay_uses

TEST = "tests/test_ppo.py"
PLAN = RunDescription(test=TEST, deviations=(Deviation("probe", "none", "yes", "why"),))
TORCH = ImportedModule("torch", "/lib/torch/__init__.py", "2.11")
PYTEST = ImportedModule("pytest", "/lib/pytest/__init__.py")


def process(pid: int, *argv: str, **values: object) -> ProcessEvidence:
    start = {"pid": pid, "start": pid * 10, "started_at": float(pid), "namespace": "n", "end": "exit", "argv": argv}
    return ProcessEvidence(**{**start, **values})  # type: ignore[arg-type]


def evidence(*processes: ProcessEvidence, **packages: dict[str, str]) -> RunEvidence:
    return RunEvidence(len(processes), 0, packages, processes)


@pytest.mark.parametrize(
    ("argv", "imports", "is_test"),
    [
        (("python", TEST, "--flag"), (), True),
        (("python", f"/w/{TEST}"), (), True),
        (("python", "test_ppo.py"), (), True),
        (("python", "-u", "-X", "dev", "-W", "error", TEST), (), True),
        (("python", "-m", "pytest", TEST + "::test_a"), (PYTEST,), True),
        (("python", "/v/bin/pytest", "-q", TEST), (PYTEST,), True),
        (("python", "tests/ci/gpu_lock_exec.py", "--count", "4", "--", "python", TEST), (), False),
        (("python", "other/test_ppo2.py"), (TORCH,), False),
        (("python", "-c", "pass"), (TORCH,), False),
    ],
)
def test_process_that_ran_the_test(argv: tuple[str, ...], imports: tuple[ImportedModule, ...], is_test: bool) -> None:
    first = process(1, "python", "-m", "pip", "install", "-e", ".")
    found = probe_evidence.test_process(evidence(first, process(2, *argv, imports=imports)), TEST)
    assert (found is not None and found.pid == 2) == is_test


def test_without_a_test_file_it_is_the_process_that_imported_the_most() -> None:
    few, many = process(1, imports=(TORCH,)), process(2, imports=(TORCH, PYTEST))
    assert probe_evidence.test_process(evidence(few, many, process(3)), None) == many
    assert probe_evidence.test_process(evidence(process(3)), None) is None


def test_the_packages_are_those_of_the_interpreter_that_the_test_ran_in() -> None:
    installed = {"torch": "2.11", "flash_attn": "2.8", "PyYAML": "6"}
    pip = process(1, "python", "-m", "pip", packages="b", executable="/usr/bin/python3")
    test = process(2, "python", TEST, packages="a", executable="/w/venv/bin/python", python="3.12.3", imports=(TORCH,))
    before = RunEnvironment()
    found = with_imports(before, evidence(pip, test, a=installed, b={}), TEST)
    assert (found.python, found.interpreter) == ("3.12.3", "/w/venv/bin/python")
    assert found.packages == {"torch": "2.11", "flash-attn": "2.8", "PyYAML": "6"}
    assert found.imported == (TORCH,)


def test_a_script_that_is_no_test_has_the_packages_of_the_only_interpreter() -> None:
    lists: dict[str, dict[str, str]] = {"a": {"torch": "2.11"}, "b": {}}
    script, worker = (process(pid, "python", "train.py", packages="a", python="3.12.3") for pid in (1, 2))
    other = process(3, "/usr/bin/python3", "tool.py", packages="b")
    before = RunEnvironment()
    found = with_imports(before, evidence(script, worker, process(4), **lists), None)
    assert (found.python, found.packages) == ("3.12.3", {"torch": "2.11"})
    assert with_imports(before, evidence(script, worker, other, **lists), None) == before
    assert with_imports(before, evidence(script, worker, **lists), TEST) == before


def test_a_fork_has_the_packages_of_its_parent_and_an_unseen_test_changes_nothing() -> None:
    installed = {"torch": "2.11"}
    parent = process(1, "python", "x.py", packages="a")
    fork = process(2, "python", TEST, forked=True, ppid=1, parent_start=10)
    child = replace(fork, forked=False, packages="b")
    before = RunEnvironment(python="3.11.2", packages={"x": "1"})
    assert with_imports(before, evidence(parent, fork, a=installed), TEST).packages == {"torch": "2.11"}
    assert with_imports(before, evidence(parent, child, a=installed, b={"y": "2"}), TEST).packages == {"y": "2"}
    assert with_imports(before, evidence(parent, a=installed), TEST).packages == {"x": "1"}
    assert with_imports(before, None, TEST) == before


def test_a_module_is_known_once_by_the_process_that_knows_its_version() -> None:
    unknown = replace(TORCH, package_version="")
    other = ImportedModule("torch", "/other/torch/__init__.py")
    found = evidence(process(1, imports=(unknown,)), process(2, imports=(TORCH,)), process(3, imports=(other,)))
    assert probe_evidence.imported_modules(found) == (TORCH, other)


IN_IMAGE = ImportedModule("slime", "/root/slime/slime/__init__.py")
WORKSPACE = "/runs/b/01/workspace"
CALL = DockerInvocation(("run",), ("run", "-v", f"{WORKSPACE}:/src", "image", "bash"))
ELSEWHERE = [  # the origin, where it counts, and why
    (f"{WORKSPACE}/slime/__init__.py", (), False),
    ("", (), False),  # a copy that was installed from a directory, as CI's own `pip install .` makes it
    ("/src/slime/__init__.py", (CALL,), False),
    ("/src/slime/__init__.py", (), True),
    ("/root/slime/slime/__init__.py", (CALL,), True),
    (f"{WORKSPACE}-2/slime/__init__.py", (), True),
    ("/c/b/01/workspace/slime/__init__.py", (replace(CALL, here=("run", "-v", "/runs:/c", "image")),), False),
]


@pytest.mark.parametrize(("origin", "calls", "is_elsewhere"), ELSEWHERE)
def test_a_package_of_the_checkout_from_elsewhere_is_a_deviation(
    origin: str, calls: tuple[DockerInvocation, ...], is_elsewhere: bool
) -> None:
    ours = replace(IN_IMAGE, origin=origin or IN_IMAGE.origin, local=not origin)
    found = evidence(process(1, imports=(ours, TORCH)))
    deviations = list(probe_evidence.imported_elsewhere(found, ("slime",), WORKSPACE, calls))
    assert [(each.what, each.here) for each in deviations] == ([("import slime", origin)] if is_elsewhere else [])


def test_exceptions_are_in_the_order_of_their_time() -> None:
    def failure(t: float, **values: object) -> NotedException:
        frames = (CodeFrame("/w/run.py", 3, "main"), CodeFrame("/w/loader.py", 88, "next_batch"))
        chain = (LinkedException("builtins.KeyError", "\n'x'\nmore", frames),)
        return NotedException(t, chain=chain, **values)  # type: ignore[arg-type]

    late = process(1, exceptions=(failure(9, where="main"), NotedException(1)))
    early = process(2, env={"RANK": "3"}, exceptions=(failure(5, where="thread", name="loader"),))
    found = uncaught_exceptions(evidence(late, early))
    assert [probe_evidence.exception_text(*pair) for pair in found] == [
        "pid 2, rank 3, thread loader: KeyError: 'x' (loader.py:88 in next_batch)",
        "pid 1: KeyError: 'x' (loader.py:88 in next_batch)",
    ]


def test_of_rays_exceptions_the_workers_own_line_is_shown() -> None:
    message = "\x1b[36mray::A.fail()\x1b[39m (pid=7)\n  File x\n    raise y\nValueError: loss is nan\n"
    failure = NotedException(chain=(LinkedException("ray.exceptions.RayTaskError(ValueError)", message),))
    expected = "pid 1: ray.exceptions.RayTaskError(ValueError): ValueError: loss is nan"
    assert probe_evidence.exception_text(process(1), failure) == expected


def test_the_summary_says_what_was_not_seen() -> None:
    assert probe_summary(None, RunDescription(), ()) is None
    assert probe_summary(None, PLAN, ()) == ProbeSummary(not_seen=("no records of processes",))
    none = Deviation("probe", "none", "none in the container: the image has no Python from 3.8 on", "why")
    calls = (DockerInvocation((), (), (none,)), DockerInvocation((), (), (none,)))
    empty = probe_summary(RunEvidence(), PLAN, calls)
    assert empty is not None and empty.not_seen == (none.here, "no Python process was seen")
    found = RunEvidence(2005, 2003, {}, (process(1), process(2, end="")))
    summary = probe_summary(found, PLAN, ())
    assert summary is not None and (summary.processes, summary.ended, summary.counted) == (2, 1, 2005)
    assert summary.not_seen == ("what 2003 processes recorded could not be read, or was too much",)


def test_a_file_that_is_none_has_no_evidence(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    assert probe_evidence.read_run_evidence(run) is None
    Path(run.evidence_file).write_bytes(b"\xff\n[]\n{}\n" + b'{"process": {"pid": "x"}}\n')
    assert probe_evidence.read_run_evidence(run) == RunEvidence()
    Path(run.evidence_file).unlink()
    Path(run.evidence).mkdir()
    collect_evidence(run)
    assert probe_evidence.read_run_evidence(run) == RunEvidence()


OVERLAY = Overlay(name="sglang", path="/me/sglang", directory=".ci-tasks-overlays/sglang/python", modules=("sglang",))
PLACE = "/runs/1/01/workspace/.ci-tasks-overlays/sglang/python"
OURS = f"{PLACE}/sglang/__init__.py"
THEIRS = "/usr/lib/python3/site-packages/sglang/__init__.py"


def _process(pid: int, *origins: str, name: str = "sglang") -> ProcessEvidence:
    return process(pid, "python", "train.py", imports=tuple(ImportedModule(name, origin) for origin in origins))


SHOWN = "shown: the one process that was seen to import it loaded it from there"
CASES = [
    ([_process(1, OURS), _process(2), _process(3, OURS)], "shown: all 2 processes that were seen to import it", ""),
    (
        [_process(1, OURS), _process(2, THEIRS)],
        "contradicted: ",
        f"pid 2 (python train.py) imported sglang from {THEIRS}",
    ),
    ([_process(1)], "not seen: ", ""),
    (None, "not seen: ", ""),
    # Another directory of the same name is not the run's.
    ([_process(1, f"/tmp{OURS}")], "contradicted: ", f"imported sglang from /tmp{OURS}"),
    ([_process(1, OURS.replace("/sglang/__", "/../sglang/__"))], "contradicted: ", "imported sglang from "),
    # Modules of the package count as it does, but for compiled ones, which the tree may lack.
    ([_process(1, OURS), _process(2, THEIRS, name="sglang.srt")], "contradicted: ", "imported sglang.srt from"),
    ([_process(1, OURS), _process(2, THEIRS.replace("__init__.py", "_c.abi3.so"), name="sglang._c")], SHOWN, ""),
    ([_process(1, OURS), _process(2, THEIRS, name="sglang_router")], SHOWN, ""),
    # What the job wrote itself is no text for a terminal.
    ([_process(1, "\x1b[2J\n/etc")], "contradicted: ", "imported sglang from \N{REPLACEMENT CHARACTER}"),
]


def _record(status: str = "passed") -> RunRecord:
    return RunRecord(
        id="1.01", label="unit", row="unit", host=None, status=status,
        checkout=Checkout(path="/me/repo", overlays=(OVERLAY,)),
        deviations=(Deviation("overlay sglang", "the installed one", "abc", "--with sglang=/me/sglang"),),
        attempts=(Attempt(id="1.01", host=None, status=status),),
    )  # fmt: skip


@pytest.mark.parametrize(("processes", "said", "reason"), CASES)
def test_shown_contradicted_and_not_seen(processes: list[ProcessEvidence] | None, said: str, reason: str) -> None:
    evidence = RunEvidence(processes=tuple(processes)) if processes is not None else None
    judged = with_overlay_uses(_record(), evidence, (ProbeOverlay(PLACE, ("sglang",), PLACE),))
    status = "blocked" if reason else "passed"
    assert (judged.status, judged.attempts[-1].status) == (status, status)
    assert judged.deviations[0].why.startswith(f"--with sglang=/me/sglang; {said}")
    assert reason in judged.reason and bool(judged.reason) == bool(reason)
    assert judged.reason.isprintable()


def test_a_run_that_another_client_planned_is_judged_by_the_end_of_the_path() -> None:
    assert with_overlay_uses(_record(), RunEvidence(processes=(_process(1, OURS),))).status == "passed"


def test_compiled_parts_that_stay_the_installed_ones_are_named() -> None:
    files = [f"sglang/_{number}.so" for number in range(7)]
    compiled = [_process(2, f"/usr/lib/{file}", name=file[:-3].replace("/", ".")) for file in files]
    evidence = RunEvidence(processes=(_process(1, OURS), *compiled))
    deviation = with_overlay_uses(_record(), evidence).deviations[-1]
    assert deviation.what == "overlay sglang: compiled parts"
    assert deviation.here == f"the installed {', '.join(files[:5])} and 2 more"
    assert deviation.why.startswith("the tree does not have them, so --with replaces its Python code alone")


def test_a_lost_run_stays_lost() -> None:
    assert with_overlay_uses(_record("lost"), RunEvidence(processes=(_process(2, THEIRS),))).status == "lost"
