"""The task runner: what happens before training, then the steps, with checkpoints and validation where asked."""

import json
import logging
import os
import sys
from pathlib import Path
from pprint import pprint

import ray
from verl.failures import asked, fill_a_disk
from verl.trainer.ppo.metrics import console_line, step_metrics, validation_metrics
from verl.trainer.ppo.progress import Progress
from verl.workers.megatron_worker import WorkerDict
from verl.workers.rollout import SGLangHttpServer, vLLMHttpServer

logger = logging.getLogger(__name__)

PROCESSES = 2  # as many workers are real; the count of GPUs is only a number
LATEST = "latest_checkpointed_iteration.txt"


class BaseTaskRunner:
    def run(self, config):
        pprint(config)
        self.config, self.trainer = config, config["trainer"]
        self.check_data()
        self.fetch_model()
        self.start_servers()
        self.start_workers()
        self.fit()

    def check_data(self):
        for key in ("train_files", "val_files"):
            content = Path(self.config["data"][key]).read_bytes()
            if not content.startswith(b"PAR1"):
                raise ValueError(f"data.{key} is not a parquet file: {self.config['data'][key]}")
        print("dataset len: 64")

    def fetch_model(self):
        if asked("disk-full"):
            print("Fetching 1 files:   0%|          | 0/1 [00:00<?, ?it/s]", file=sys.stderr)
            fill_a_disk()

    def start_servers(self):
        """Rollout, and the reward model's own: both before any model is built."""
        rollout, reward = self.config["actor_rollout_ref"]["rollout"], self.config["reward"]["reward_model"]
        server = {"vllm": vLLMHttpServer, "sglang": SGLangHttpServer}[rollout["name"]]
        self.servers = [server.remote()]
        started = [self.servers[0].launch.remote(self.config["actor_rollout_ref"]["model"]["path"], rollout)]
        if reward["enable"]:
            self.servers.append(server.remote())
            started.append(self.servers[1].launch_reward_model.remote(reward["model_path"], reward["rollout"]))
        ray.get(started)

    def start_workers(self):
        gpus = self.trainer["nnodes"] * self.trainer["n_gpus_per_node"]
        self.workers = [WorkerDict.remote(rank, gpus) for rank in range(min(gpus, PROCESSES))]
        self.on_workers("init_model", self.config)

    def on_workers(self, method, *arguments):
        """The first worker's result; all ranks compute the same."""
        return ray.get([getattr(worker, method).remote(*arguments) for worker in self.workers])[0]

    def fit(self):
        done, total = self.load_checkpoint(), self.trainer["total_training_steps"]
        if self.trainer["val_before_train"]:
            found = self.validate(done)
            pprint(f"Initial validation metrics: {found}")
            print(console_line(found, done))
        progress = Progress(total, done)
        for step in range(done + 1, total + 1):
            last = step == total
            outcome = self.on_workers("update", step)
            if self.due("save_freq", step, last):
                self.save_checkpoint(step)
            metrics = step_metrics(self.config, outcome, step)
            found = None
            if self.due("test_freq", step, last):
                found = self.validate(step)
                metrics |= found
            print(console_line(metrics, step))
            progress.update()
            if last:
                pprint(f"Final validation metrics: {found}")
        progress.close()

    def due(self, frequency, step, last):
        every = self.trainer[frequency]
        return every > 0 and (last or step % every == 0)

    def validate(self, step):
        return validation_metrics(self.on_workers("validate", step))

    def save_checkpoint(self, step):
        folder = os.path.join(self.trainer["default_local_dir"], f"global_step_{step}")
        self.announce_save(folder)
        self.on_workers("save_checkpoint", folder)
        Path(folder, "data.pt").write_text(json.dumps({"step": step}))
        Path(self.trainer["default_local_dir"], LATEST).write_text(str(step))

    def load_checkpoint(self):
        """The step to go on from."""
        folder = self.latest_checkpoint()
        if folder is None:
            return 0
        step = int(folder.rsplit("global_step_", 1)[1])
        self.announce_resume(folder, step)
        self.on_workers("load_checkpoint", folder)
        return step

    def latest_checkpoint(self):
        if self.trainer["resume_mode"] == "disable":
            return None
        if self.trainer["resume_mode"] == "resume_path":
            return os.path.abspath(self.trainer["resume_from_path"])
        folder = os.path.join(os.getcwd(), self.trainer["default_local_dir"])
        tracker = Path(folder, LATEST)
        if asked("resume-nothing") or not tracker.exists():
            print(f"Checkpoint tracker file does not exist: {tracker}")
            self.announce_scratch()
            return None
        found = os.path.join(folder, f"global_step_{int(tracker.read_text())}")
        print(f"Found checkpoint: %s {found}")  # the placeholder is verl's
        return found


@ray.remote
class TaskRunner(BaseTaskRunner):
    """Speaks as verl's legacy trainer does."""

    def announce_save(self, folder):
        print(f"local_global_step_folder: {folder}")

    def announce_scratch(self):
        print("Training from scratch")

    def announce_resume(self, folder, step):
        print(f"Load from checkpoint folder: {folder}")
        print(f"Setting global step to {step}")
        print(f"Resuming from {folder}")


@ray.remote
class TaskRunnerV1(BaseTaskRunner):
    """Speaks as verl's newer trainer does, through logging on stderr: `trainer.use_v1=True`."""

    def announce_save(self, folder):
        logger.info(f"Saving checkpoint to {folder}")

    def announce_scratch(self):
        logger.info("Training from scratch")

    def announce_resume(self, folder, step):
        logger.info(f"Resuming from {folder}, setting global step to {step}")
