"""The probe's hook for verl in real Ray workers, with real modules of verl, on the CPU.

    python bench/verl_hooks_ray.py PYTHON VERL     # PYTHON with ray, torch, transformers and what verl imports

VERL's default configuration goes to its ActorRolloutRefWorker, made an actor by `ray.remote` as its trainer does it;
another actor builds a small model in FSDP, and writes and reads a checkpoint with verl's manager; the driver logs steps
with verl's Tracking. No training, no Megatron. The probe's files are in PYTHON's site-packages while it runs. Prints
what each process noted.

Run on 2026-11-23 with Ray 2.60, torch 2.15 and verl v0.7.1, v0.9.0 and main of 2026-08-22; no note failed. The actor's
process noted its configuration in five parts, the driver each step, the third process the checkpoint's files as written
and as read. v0.9.0 writes none without a GPU, and what verl raised is in the record.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = r"""
import os, sys, tempfile
import ray
from omegaconf import OmegaConf
from verl.utils.tracking import Tracking
from verl.workers.engine_workers import ActorRolloutRefWorker

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512",
        "WG_PREFIX": "w", "WG_BACKEND": "ray", "RAY_LOCAL_WORLD_SIZE": "1"}

@ray.remote
class Checkpoints:
    def run(self, path):
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel
        from transformers import AutoModelForCausalLM, Qwen2Config
        from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

        torch.distributed.init_process_group("gloo")
        small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = AutoModelForCausalLM.from_config(Qwen2Config(**small, num_key_value_heads=2, vocab_size=32))
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        contents = ["model", "optimizer", "extra"]
        config = OmegaConf.create({"save_contents": contents, "load_contents": contents})
        class Processing:
            def save_pretrained(self, path): ...
        manager = FSDPCheckpointManager(model, optimizer, schedule, Processing(), checkpoint_config=config)
        error = ""
        try:
            manager.save_checkpoint(path, None, 3)
            manager.load_checkpoint(path)
        except Exception as raised:
            error = repr(raised)[:200]
        return error

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
from verl.trainer import config as configs
config = OmegaConf.load(os.path.join(os.path.dirname(configs.__file__), "_generated_ppo_megatron_trainer.yaml"))
remote = ray.remote(ActorRolloutRefWorker)
worker = remote.options(runtime_env={"env_vars": RANK}).remote(config=config.actor_rollout_ref, role="actor")
try:
    ray.get(worker.__ray_ready__.remote())
    print("worker made")
except Exception as raised:
    print("worker:", str(raised).strip().splitlines()[-1])
checkpoints = Checkpoints.options(runtime_env={"env_vars": RANK}).remote()
path = tempfile.mkdtemp() + "/global_step_3/actor"
print("checkpoint:", ray.get(checkpoints.run.remote(path)) or "written and read")
tracking = Tracking("p", "e", default_backend=["console"])
for step in (1, 2):
    tracking.log(data={"critic/rewards/mean": 0.5 * step, "actor/kl": float("nan")}, step=step)
ray.shutdown()
"""


def main(python: str, verl: str) -> None:
    from ci_tasks.agent.probe.evidence import read_evidence, write_files
    from ci_tasks.agent.run_directory import RunDir
    from ci_tasks.features.verl.levels.job import SUITE
    from ci_tasks.run.row_plans import probe_rules

    run = RunDir(tempfile.mkdtemp())
    write_files(run, probe_rules(SUITE))
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    names = os.listdir(run.probe)
    try:
        for name in names:
            (packages / name).write_bytes(Path(run.probe, name).read_bytes())
        subprocess.run([python, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": verl}, timeout=500, check=True)
    finally:
        for name in names:
            (packages / name).unlink()
    evidence = read_evidence(run.evidence)
    assert evidence is not None
    print(f"{len(evidence.processes)} processes")
    for process in evidence.processes:
        for event in process.hook_events:
            print(f"{process.pid} {str(event)[:300]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
