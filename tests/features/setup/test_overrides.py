"""Which index has wheels of torch for CPUs: pip's answers → overrides. `AnsweringPip` refuses any other question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import Override
from ci_tasks.features.setup.setup import add_overrides, find_torch
from ci_tasks.workflow.model import Job, Step

CI = "https://download.example/whl"
MIRROR = "https://mirror.example/simple"


class AnsweringPip:
    """`versions` by (package, index options)."""

    def __init__(self, versions: Mapping[tuple[str, ...], str]) -> None:
        self.versions = versions
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, questions: Mapping[str, Sequence[str]], timeout: float) -> dict[str, QueryAnswer]:
        return {name: self.answer([*argv]) for name, argv in questions.items()}

    def answer(self, argv: list[str]) -> QueryAnswer:
        assert argv[:5] == ["/py", "-m", "pip", "index", "versions"], argv
        words = tuple(argv[argv.index("10") + 1 :])
        self.asked.append((words[-1], *words[:-1]))
        listed = self.versions.get(self.asked[-1])
        if listed is None:
            return QueryAnswer(1, "", f"ERROR: No matching distribution found for {words[-1]}")
        return QueryAnswer(0, f"{words[-1]} (9)\nAvailable versions: {listed}\n", "")


def job(*scripts: str) -> Job:
    return Job("cpu", 1, steps=tuple(Step(f"Step {n}", n, run=script) for n, script in enumerate(scripts, 1)))


TORCH = f"pip install torch==2.9.1+cu128 --index-url {CI}"
PIPS_OWN = "pip install torch -i https://x/cpu"


WHEELS = [
    # As in CI.
    (PIPS_OWN, None, {("torch", "-i", "https://x/cpu"): "2.9.1+cpu, 2.8.0+cpu"}, "cpu", []),
    # CI's index is not reached: the mirror's wheels for CPUs come before CUDA's of pip's own index.
    (TORCH, MIRROR, {("torch",): "2.9.1", ("torch", "--index-url", MIRROR): "2.9.1+cpu"}, "cpu",
     [Override("cpu", "Step 1", pip_index=MIRROR, replace={"torch==2.9.1+cu128": "torch==2.9.1+cpu"})]),
    # An index with both.
    (TORCH, None, {("torch", "--index-url", CI): "2.9.1+cu128, 2.9.1+cpu"}, "cpu",
     [Override("cpu", "Step 1", replace={"torch==2.9.1+cu128": "torch==2.9.1+cpu"})]),
    # Only CUDA wheels can be had.
    (PIPS_OWN, None, {("torch",): "2.9.1"}, "cuda", [Override("cpu", "Step 1", pip_index="default")]),
    (TORCH, None, {("torch", "--index-url", CI): "2.9.1+cu128"}, "cuda", []),
    # No index answers, or the job installs no torch: nothing is asked for.
    (TORCH, MIRROR, {}, "", []),
    ("pip install a", MIRROR, {("a",): "1"}, "", []),
]  # fmt: skip


@pytest.mark.parametrize(("script", "index", "versions", "kind", "overrides"), WHEELS)
def test_wheels_of_torch_for_cpus_come_first(
    script: str, index: str | None, versions: Mapping[tuple[str, ...], str], kind: str, overrides: list[Override]
) -> None:
    assert find_torch(job(script), index, "/py", AnsweringPip(versions)) == (kind, overrides)


ENTRY = '{job: cpu, step: "Install dependencies", pip_index: default}'
MINE = "overrides:\n  # of mine\n  - {job: a, step: b, skip: true}\n"
ADDED = f"overrides:\n  # by `ci-tasks setup`: for slime\n  - {ENTRY}\n"

CASES: list[tuple[str, str | None]] = [
    ("", ADDED),
    ("# mine\nhosts:\n  a: {kind: local}  # here\n", f"# mine\nhosts:\n  a: {{kind: local}}  # here\n{ADDED}"),
    ("hosts: {}", f"hosts: {{}}\n{ADDED}"),
    (MINE, f"{MINE}{ADDED.removeprefix('overrides:')[1:]}"),
    # What cannot be added to without changing the rest.
    (f"{MINE}hosts: {{}}\n", None),
    ("{hosts: {}}\n", None),
    ("- a\n", None),
]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_entries_are_added(before: str, after: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(before)
    assert not add_overrides(file, [], "for slime") and "nothing to write" in capsys.readouterr().out
    assert add_overrides(file, [ENTRY], "for slime") is (after is not None)
    assert file.read_text() == (before if after is None else after)
    assert ADDED in capsys.readouterr().out


def test_a_file_that_is_a_link_stays_one_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.yaml", tmp_path / "hosts.yaml"
    real.write_text("# mine\n")
    real.chmod(0o600)
    link.symlink_to(real)
    assert add_overrides(link, [ENTRY], "for slime")
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert real.read_text() == f"# mine\n{ADDED}"
