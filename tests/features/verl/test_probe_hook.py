"""The probe's hook for verl, in real interpreters with small packages that have verl's and Bridge's names."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ci_tasks.features.verl import probe_hook
from ci_tasks.features.verl.judge.hook_records import (
    KINDS,
    AppliedPeft,
    BuiltModel,
    HookedModule,
    LoadedCheckpoint,
    ParallelSizes,
    RoleConfig,
    SavedFiles,
    StepMetrics,
    noted,
)
from ci_tasks.features.verl.levels.suite import SUITE
from ci_tasks.results.probe_evidence import probe_summary
from ci_tasks.run.probe_rules import probe_rules
from tests.agent.probe.interpreters import Interpreter, add_probe, make_interpreter
from tests.results.test_probe_evidence import PLAN

SOURCES = {
    "torch/__init__.py": "from torch import distributed",
    "torch/distributed.py": "get_rank = lambda: 3\nget_world_size = lambda: 8",
    "verl/utils/tracking.py": """
        class Tracking:
            def log(self, data, step, backend=None):
                print("logged", step)
        """,
    "verl/workers/engine_workers.py": """
        class ActorRolloutRefWorker:
            def __init__(self, config, role, **kwargs):
                self.role = role
        """,
    "verl/utils/checkpoint/megatron_checkpoint_manager.py": """
        import os
        class MegatronCheckpointManager:
            def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
                os.makedirs(local_path + "/dist_ckpt")
                open(local_path + "/dist_ckpt/part.distcp", "w").write("x" * 7)
            def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=False):
                if not os.path.exists(local_path):
                    raise FileNotFoundError(local_path)
        """,
    "megatron/bridge/models/model_provider.py": """
        class Parameter:
            dtype = "torch.bfloat16"
            def __init__(self, count, requires_grad):
                self.count, self.requires_grad = count, requires_grad
            def numel(self):
                return self.count
        class Module:
            parts = ()
            def named_parameters(self): ...
            def parameters(self):
                return [Parameter(100, False), Parameter(4, True)]
            def modules(self):
                return [self, *self.parts]
        class LoRALinear(Module): ...
        class GPTModel(Module):
            parts = (LoRALinear(), LoRALinear())
        class DistributedDataParallel(GPTModel):
            module = GPTModel()
        class ModelProviderMixin:
            def finalize(self): ...
            def provide(self): ...
            def provide_distributed_model(self, **kwargs):
                return [DistributedDataParallel()]
        class Qwen2ModelProvider(ModelProviderMixin): ...
        """,
    "megatron/bridge/peft/base.py": """
        class PEFT:
            def __call__(self, model, training=True):
                return model
        class LoRA(PEFT):
            pass
        """,
    "megatron/core/parallel_state.py": """
        def initialize_model_parallel(**sizes): ...
        def get_tensor_model_parallel_world_size(): return 2
        def get_pipeline_model_parallel_world_size(): return 1
        def get_data_parallel_world_size(): return 4
        def get_context_parallel_world_size(): raise AssertionError("not initialized")
        """,
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    python = make_interpreter(tmp_path_factory.mktemp("python"), probe=False)
    add_probe(python, probe_rules(SUITE))
    for name, text in SOURCES.items():
        file = python.packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return python


def run(python: Interpreter, program: str) -> None:
    for file in Path(python.run.evidence).glob("*"):
        file.unlink()
    code, _, errors = python("-c", textwrap.dedent(program))
    assert (code, errors) == (0, "")


def test_the_configuration_of_a_role_is_noted_by_section(python: Interpreter) -> None:
    run(
        python,
        """
        from verl.workers.engine_workers import ActorRolloutRefWorker
        config = {"actor": {"megatron": {"tensor_model_parallel_size": 2}, "lr": [1e-6, "x"]}, "hybrid": True}
        assert ActorRolloutRefWorker(config, role="actor_rollout").role == "actor_rollout"
        """,
    )
    configs = [record for _, record in noted(python.evidence(), RoleConfig)]
    actor = {"actor.megatron.tensor_model_parallel_size": 2, "actor.lr": [1e-6, "x"]}
    assert configs == [
        RoleConfig("actor_rollout", "ActorRolloutRefWorker", "actor", actor),
        RoleConfig("actor_rollout", "ActorRolloutRefWorker", "", {"hybrid": True}),
    ]


def test_a_step_is_noted_as_verls_logger_got_it_and_what_is_not_finite_is_a_word(python: Interpreter) -> None:
    run(
        python,
        """
        from verl.utils.tracking import Tracking
        Tracking().log(data={"actor/pg_loss": 0.123456789123, "actor/kl": float("nan"), "table": "x"}, step=4)
        """,
    )
    [(_, metrics)] = noted(python.evidence(), StepMetrics)
    assert metrics == StepMetrics(4, {"actor/pg_loss": 0.12345679, "actor/kl": "nan"})


def test_a_model_is_noted_as_it_was_built_with_its_adapters(python: Interpreter) -> None:
    run(
        python,
        """
        from megatron.bridge.models.model_provider import Qwen2ModelProvider
        from megatron.bridge.peft.base import LoRA
        from megatron.core.parallel_state import initialize_model_parallel
        import torch
        initialize_model_parallel()
        LoRA()(Qwen2ModelProvider().provide_distributed_model(wrap_with_ddp=True))
        """,
    )
    evidence = python.evidence()
    [(_, model)] = noted(evidence, BuiltModel)
    assert model == BuiltModel(
        source="provide_distributed_model",
        provider="Qwen2ModelProvider",
        wrappers=("DistributedDataParallel",),
        model="GPTModel",
        parameters=104,
        trainable=4,
        adapters={"LoRALinear": 2},
    )
    assert [record for _, record in noted(evidence, AppliedPeft)] == [AppliedPeft("LoRA")]
    assert [record for _, record in noted(evidence, ParallelSizes)] == [ParallelSizes(3, 8, 2, 1, data=4)]


def test_a_checkpoint_is_noted_with_its_files_as_it_was_written_and_read(python: Interpreter, tmp_path: Path) -> None:
    path = tmp_path / "global_step_1" / "actor"
    run(
        python,
        f"""
        from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager as Manager
        Manager().save_checkpoint({str(path)!r}, None, 1, max_ckpt_to_keep=2)
        Manager().load_checkpoint(local_path={str(path)!r})
        try:
            Manager().load_checkpoint({str(tmp_path / "none")!r})
        except FileNotFoundError:
            pass
        """,
    )
    evidence, files = python.evidence(), {"dist_ckpt/part.distcp": 7}
    assert [record for _, record in noted(evidence, SavedFiles)] == [
        SavedFiles("checkpoint", str(path), 1, None, files)
    ]
    missing = str(tmp_path / "none")
    assert [record for _, record in noted(evidence, LoadedCheckpoint)] == [
        LoadedCheckpoint(str(path), None, files),
        LoadedCheckpoint(missing, error=f"FileNotFoundError: {missing}"),
    ]


def test_a_name_that_this_revision_does_not_have_is_said_to_be_missing(python: Interpreter) -> None:
    run(python, "import verl.workers.engine_workers")
    [(_, hooked)] = noted(python.evidence(), HookedModule)
    assert hooked == HookedModule(
        "verl.workers.engine_workers", ("ActorRolloutRefWorker.__init__",), ("TrainingWorker.__init__",)
    )


def test_a_note_that_fails_is_said_and_the_training_goes_on(python: Interpreter) -> None:
    run(python, "from verl.utils.tracking import Tracking; Tracking().log(data=7, step=1)")
    summary = probe_summary(python.evidence(), PLAN, ())
    assert summary is not None
    [said] = summary.not_seen
    assert said.startswith("verl: hook failed: AttributeError: 'int' object has no attribute 'items'")


def test_every_kind_that_the_hook_emits_has_a_record() -> None:
    assert set(KINDS) == set(probe_hook.KINDS)
