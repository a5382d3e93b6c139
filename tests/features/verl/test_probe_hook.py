"""The probe's hook for verl, in real interpreters with small packages that have verl's and Bridge's names, and the
functions of real revisions, which `bench/verl_hooks.py` writes into a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci_tasks.features.verl.judge import training_run
from ci_tasks.features.verl.judge.training_log import TrainingFacts
from ci_tasks.features.verl.judge.training_run import BuiltModel, CheckpointFiles, HookedModule, ParallelSizes
from ci_tasks.features.verl.levels.levels import Training
from ci_tasks.features.verl.probe_hook import MODULES, TABLE
from ci_tasks.features.verl.suite import SUITE
from ci_tasks.planning.checkout_files import probe_rules
from ci_tasks.results.probe_evidence import probe_summary
from tests.agent.probe.interpreters import Interpreter, add_probe, make_interpreter
from tests.results.test_probe_evidence import PLAN

SOURCES = yaml.safe_load(Path(__file__).with_name("hooked_packages.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    python = make_interpreter(tmp_path_factory.mktemp("python"), probe=False)
    add_probe(python, probe_rules(SUITE))
    for name, text in SOURCES.items():
        file = python.packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return python


PROGRAM = """
from megatron.bridge.models.model_provider import Qwen2ModelProvider
from megatron.core.parallel_state import initialize_model_parallel
initialize_model_parallel()
Qwen2ModelProvider().provide_distributed_model(wrap_with_ddp=True)

from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager as Manager
Manager().save_checkpoint("ROOT/actor", None, 1, max_ckpt_to_keep=2)
Manager().load_checkpoint(local_path="ROOT/actor")
try:
    Manager().load_checkpoint("ROOT/none")
except FileNotFoundError:
    pass
"""
MODEL = BuiltModel("Qwen2ModelProvider", ("DistributedDataParallel",), "GPTModel", 104, 4, 2, {"LoRALinear": 2})


def run(python: Interpreter, program: str) -> None:
    for file in Path(python.run.evidence).glob("*"):
        file.unlink()
    code, _, errors = python("-c", program)
    assert (code, errors) == (0, "")


def test_a_training_is_noted_as_it_was_configured_built_logged_and_saved(python: Interpreter, tmp_path: Path) -> None:
    """A name that this revision does not have is not among those that were found."""
    run(python, PROGRAM.replace("ROOT", str(tmp_path)))
    saved, gone = f"{tmp_path}/actor", f"{tmp_path}/none"
    noted = training_run.TrainingRun(Training("", 0, {}), TrainingFacts(), evidence=python.evidence())
    files = {"dist_ckpt/part.distcp": 7}
    expected: dict[tuple[str, type[Any]], list[Any]] = {
        ("model", BuiltModel): [MODEL],
        ("sizes", ParallelSizes): [ParallelSizes(2, 1)],
        ("saved", CheckpointFiles): [CheckpointFiles(saved, files)],
        ("loaded", CheckpointFiles): [
            CheckpointFiles(saved, files),
            CheckpointFiles(gone, error=f"FileNotFoundError: {gone}"),
        ],
    }
    assert {kind: [record for _, record in noted.noted(*kind)] for kind in expected} == expected
    assert HookedModule(("ModelProviderMixin.provide_distributed_model",)) in [
        hooked for _, hooked in noted.noted("hooked", HookedModule)
    ]


def test_a_note_that_fails_is_said_and_the_training_goes_on(python: Interpreter) -> None:
    run(python, "from verl.utils.megatron_utils import make_megatron_module as make; make()")
    summary = probe_summary(python.evidence(), PLAN, ())
    assert summary is not None
    [said] = summary.not_seen
    assert said.startswith("verl: hook failed: TypeError: broken")


REVISIONS: Mapping[str, Mapping[str, Mapping[str, list[str]]]] = json.loads(
    Path(__file__).with_name("hook_names.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_has_each_function_of_its_package_and_calls_it_as_the_hook_expects(revision: str) -> None:
    modules = REVISIONS[revision]
    expected = {module: {name for own, name, _ in TABLE if own == module} for module in MODULES if module in modules}
    assert {module: set(names) for module, names in modules.items()} == expected
    for names in modules.values():
        for name, parameters in names.items():
            assert parameters[0] == "self" or "." not in name
            assert "checkpoint" not in name or parameters[1] == "local_path"  # the place that a note is made of


def test_the_revisions_are_of_all_three_packages() -> None:
    assert {module for modules in REVISIONS.values() for module in modules} == set(MODULES)
