"""Which index has what the install steps name: pip's answers → overrides. `AnsweringPip` refuses any other question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import Override
from ci_tasks.features.setup.package_index import find_indexes, mirrors
from ci_tasks.planning.pip_commands import merged
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


def needed(scripts: Sequence[str], versions: Mapping[tuple[str, ...], str]) -> list[Override]:
    findings = find_indexes(job(*scripts), [MIRROR], "/py", AnsweringPip(versions))
    return merged(override for finding in findings for override in finding.overrides)


TORCH = f"pip install torch==2.9.1+cu128 --index-url {CI}"


@pytest.mark.parametrize(
    ("scripts", "versions", "overrides"),
    [
        # As in CI.
        (["pip install a b"], {("a",): "1"}, []),
        ([TORCH], {("torch", "--index-url", CI): "2.9.1+cu128"}, []),
        # CI's index is not reached, and pip's own has it, or a mirror of pip's configuration.
        (["pip install a -i https://x"], {("a",): "1"}, [Override("cpu", "Step 1", pip_index="default")]),
        (["pip install a"], {("a", "--index-url", MIRROR): "1"}, [Override("cpu", "Step 1", pip_index=MIRROR)]),
        # It is reached, and the version is gone.
        ([TORCH], {("torch", "--index-url", CI): "2.9.1, 2.8.0"},
         [Override("cpu", "Step 1", replace={"torch==2.9.1+cu128": "torch==2.9.1"})]),
        # Both; and the second step needs nothing.
        ([TORCH, "pip install a"], {("torch",): "2.9.1", ("a",): "1"},
         [Override("cpu", "Step 1", pip_index="default", replace={"torch==2.9.1+cu128": "torch==2.9.1"})]),
        # Nobody has it: no override is made up.
        (["pip install a"], {}, []),
    ],
)  # fmt: skip
def test_the_overrides_that_install_steps_need(
    scripts: Sequence[str], versions: Mapping[tuple[str, ...], str], overrides: list[Override]
) -> None:
    assert needed(scripts, versions) == overrides


@pytest.mark.parametrize(
    ("script", "versions", "torch", "overrides"),
    [
        # CI's index is not reached: the mirror's wheels for CPUs come before CUDA's of pip's own index.
        (TORCH, {("torch",): "2.9.1", ("torch", "--index-url", MIRROR): "2.9.1+cpu"}, "cpu",
         [Override("cpu", "Step 1", pip_index=MIRROR, replace={"torch==2.9.1+cu128": "torch==2.9.1+cpu"})]),
        # An index with both.
        (TORCH, {("torch", "--index-url", CI): "2.9.1+cu128, 2.9.1+cpu"}, "cpu",
         [Override("cpu", "Step 1", replace={"torch==2.9.1+cu128": "torch==2.9.1+cpu"})]),
        ("pip install torch -i https://x/cpu", {("torch", "-i", "https://x/cpu"): "2.9.1+cpu, 2.8.0+cpu"}, "cpu", []),
        # Only CUDA wheels can be had.
        ("pip install torch -i https://x/cpu", {("torch",): "2.9.1"}, "cuda",
         [Override("cpu", "Step 1", pip_index="default")]),
        ("pip install a", {("a",): "1"}, "", []),
    ],
)  # fmt: skip
def test_wheels_of_torch_for_cpus_come_first(
    script: str, versions: Mapping[tuple[str, ...], str], torch: str, overrides: list[Override]
) -> None:
    (finding,) = find_indexes(job(script), [MIRROR], "/py", AnsweringPip(versions))
    assert finding.torch == torch
    assert merged(finding.overrides) == overrides
    assert ("only CUDA wheels" in finding.text) is (torch == "cuda")


def test_a_package_that_no_index_has_is_named_with_what_was_tried() -> None:
    (finding,) = find_indexes(job("pip install a"), [MIRROR], "/py", AnsweringPip({}))
    assert finding.problem
    assert finding.text == f"no index that was tried has a for this Python: pip's own index, {MIRROR}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("global.extra-index-url='https://m/simple'\n", ["https://m/simple"]),
        ("global.extra-index-url='https://me:secret@m/simple'\n", []),
        ("global.extra-index-url='file:///opt/simple'\nglobal.timeout='10'\n", []),
        ("", []),
    ],
)
def test_mirrors_of_pips_configuration(text: str, found: list[str]) -> None:
    assert mirrors(text) == found
