"""Which index has wheels of torch for CPUs: pip's answers → overrides. `AnsweringPip` refuses any other question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import Override
from ci_tasks.features.setup.torch_wheels import find_torch
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


@pytest.mark.parametrize(
    ("script", "index", "versions", "kind", "overrides"),
    [
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
    ],
)  # fmt: skip
def test_wheels_of_torch_for_cpus_come_first(
    script: str, index: str | None, versions: Mapping[tuple[str, ...], str], kind: str, overrides: list[Override]
) -> None:
    assert find_torch(job(script), index, "/py", AnsweringPip(versions)) == (kind, overrides)
