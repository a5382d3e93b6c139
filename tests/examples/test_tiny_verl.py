"""The sample pair of verl and Megatron-Bridge, by hand: its wrapper runs, resumes, learns, and fails as it promises."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
WRAPPER = "tests/special_e2e/run_ppo_trainer_megatron.sh"
IMPORT_CHECK = """\
import os, ray
ray.init({arguments})
@ray.remote
def bridge_path():
    import megatron.bridge
    return megatron.bridge.__file__
print(ray.get(bridge_path.remote()))
"""
WITH_PATH = 'address="auto", runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}'


class TreesUnderTest:
    """Copies of both samples side by side, with a model, a reward model and data in a home of their own."""

    def __init__(self, root: Path) -> None:
        self.bridge, self.verl, self.home = root / "bridge", root / "verl", root / "home"
        ignored = shutil.ignore_patterns("__pycache__", "checkpoints")
        shutil.copytree(EXAMPLES / "tiny-bridge", self.bridge, ignore=ignored)
        shutil.copytree(EXAMPLES / "tiny-verl", self.verl, ignore=ignored)
        path = [self.bridge / "src", self.bridge / "3rdparty/Megatron-LM", self.verl]
        self.environment = {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(self.verl / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "TINY_STEP_SECONDS": "0",
            "LORA_RANK": "4",
            **dict.fromkeys(("COMMON_PP", "COMMON_CP", "COMMON_TP"), "1"),
            "COMMON_VPP": "null",
            "ALL_OFFLOAD": "False",
        }
        for model in ("policy", "reward"):
            directory = self.home / "models/tiny" / model
            directory.mkdir(parents=True)
            (directory / "config.json").write_text('{"num_hidden_layers": 2, "hidden_act": "silu"}')
        data = self.home / "data/gsm8k"
        data.mkdir(parents=True)
        for split in ("train", "test"):
            (data / f"{split}.parquet").write_bytes(b"PAR1[]PAR1")

    def start(self, *command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        env = self.environment | variables
        return subprocess.run(command, input=stdin, cwd=self.verl, env=env, text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def train(self, *words: str, **variables: str) -> tuple[int, str]:
        """Exit code and log, without colours."""
        done = self.start("bash", WRAPPER, *words, **variables)
        return done.returncode, re.sub(r"\x1b\[\d+m", "", done.stdout)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TreesUnderTest:
    """One for all tests that look at a log alone."""
    return TreesUnderTest(tmp_path_factory.mktemp("pair"))


def steps(log: str) -> list[dict[str, float]]:
    """Every step's metrics but its timings."""
    found = []
    for line in re.findall(r"step:[1-9]\d* - .*", log):
        items = re.findall(r"([\w@/-]+):(?:np\.float64\()?([-\w.+]+)", line)
        found.append({name: float(value) for name, value in items if not name.startswith("timing_s/")})
    return found


def test_a_run_says_what_it_was_and_that_it_ended(pair: TreesUnderTest) -> None:
    code, log = pair.train("++trainer.new.key=3", MAX_RESPONSE_LENGTH="8")
    assert code == 0
    assert "+ VANILLA_MBRIDGE=False" in log and "'vanilla_mbridge': False," in log
    assert "'new': {'key': 3}" in log and "'virtual_pipeline_model_parallel_size': None" in log
    assert "Adapter parameters:   4,096" in log
    finished = log.index("Training Progress: 100%|██████████| 1/1 [")
    assert log.index("step:1 - ") < finished < log.index("leaked shared_memory") < log.index("A worker died or was")


RESUMED = {
    "False": r"\(TaskRunner pid=\d+\) Setting global step to 1\n.* Resuming from /.*/global_step_1\n",
    "True": r"\(TaskRunnerV1 pid=\d+\) INFO:.*:Resuming from /.*/global_step_1, setting global step to 1\n",
}


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    pair = TreesUnderTest(tmp_path)
    uninterrupted = steps(pair.train(TOTAL_TRAIN_STEPS="2")[1])
    assert pair.train(SAVE_FREQ="1")[0] == 0
    latest = pair.verl / "checkpoints/verl-test/policy-megatron-gsm8k-minimal/latest_checkpointed_iteration.txt"
    for version, said in RESUMED.items():
        assert latest.read_text() == "1"
        words = [f"trainer.use_v1={version}"]
        code, log = pair.train(*words, SAVE_FREQ="2", TOTAL_TRAIN_STEPS="2", RESUME_MODE="auto")
        assert code == 0
        assert re.search(said, log) and "Loaded PEFT adapter checkpoint from" in log
        assert steps(log) == uninterrupted[1:]
        assert latest.read_text() == "2"
        latest.write_text("1")


def test_twenty_steps_show_a_learning_signal(pair: TreesUnderTest) -> None:
    code, log = pair.train(TOTAL_TRAIN_STEPS="20", VAL_BEFORE_TRAIN="True", TEST_FREQ="10")
    found = steps(log)
    assert (code, [metrics["training/global_step"] for metrics in found]) == (0, [*range(1, 21)])
    rewards = [metrics["critic/rewards/mean"] for metrics in found]
    assert sum(rewards[10:]) > sum(rewards[:10]) + 0.5
    assert all(metrics["actor/grad_norm"] > 0 and metrics["response_length/clip_ratio"] < 0.1 for metrics in found)
    validation = "val-core/openai/gsm8k/acc/mean@1"
    assert f"step:0 - {validation}:np.float64(" in log
    assert [number for number, metrics in enumerate(found, 1) if validation in metrics] == [10, 20]


DUMMY = {"USE_DUMMY_MODEL": "True", "DUMMY_MODEL_CONFIG_PATH": "experts.json", "ROUTING_REPLAY_MODE": "R3"}
FUSION = "megatron.override_transformer_config.gradient_accumulation_fusion"
UNFUSED = [f"++{role}.{FUSION}=False" for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")]
NO_REWARD_MODEL = "reward.reward_model.enable=False"


@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        ({"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2"}, [],
         r"config .*use_megatron_fsdp=False(.|\n)*critic/vf_loss"),
        ({"USE_MEGATRON_FSDP": "True"}, UNFUSED, "DistributedDataParallel with config .*use_megatron_fsdp=True"),
        ({"ADV_ESTIMATOR": "grpo", "ENGINE": "sglang"}, [NO_REWARD_MODEL], "step:1 - (?!.*critic/vf_loss)"),
        ({**DUMMY, "COMMON_EP": "2"}, [], "routing replay layers"),
    ],
    ids=["dense", "fsdp", "grpo", "dummy"],
)  # fmt: skip
def test_variants_pass(pair: TreesUnderTest, variables: dict[str, str], words: list[str], said: str) -> None:
    (pair.verl / "experts.json").write_text('{"num_hidden_layers": 1, "num_experts": 4}')
    code, log = pair.train(*words, **variables)
    assert (code, bool(re.search(said, log))) == (0, True), log


RESUMES = {"SAVE_FREQ": "1", "RESUME_MODE": "auto"}
FSDP = r"actor_rollout_ref\.actor\.megatron\.use_megatron_fsdp"
SIZE = "tensor_model_parallel_size is 2 in the provider and 1 in Megatron's mpu"


@pytest.mark.parametrize(
    ("failure", "variables", "words", "code", "line"),
    [
        ("vanilla", {}, [], 0, r"^\+ VANILLA_MBRIDGE=True$(.|\n)*'vanilla_mbridge': True,"),
        ("resume-nothing", RESUMES, [], 0, r"\(TaskRunner .*\) Training from scratch"),
        ("save-keys", {"SAVE_FREQ": "1"}, [], 1, r"^KeyError: .*missing in the export"),
        ("missing-reward-model", {}, [], 1, r"^ValueError: Invalid repository ID or local directory specified: '"),
        ("", {"RM_MODEL_PATH": "/none"}, [], 1, r"^ValueError: Invalid repository ID .*: '/none'"),
        ("", {"TRAIN_FILES": "/none"}, [], 1, r"^FileNotFoundError: .*'/none'"),
        ("", {}, ["trainer.nonsense=1"], 1, r"^Could not override 'trainer\.nonsense'\.$"),
        ("", {"RAY_ADDRESS": "10.0.0.9:6379"}, [], 1, r"^ConnectionError: Could not find any running Ray instance"),
        ("disk-full", {}, [], 1, r"^OSError: \[Errno 28\] No space left on device"),
        ("rocr", {}, [], 1, r"^ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set"),
        ("ray-init", {}, [], 1, r"^Exception: The current node timed out during startup"),
        ("hydra", {}, [], 1, rf"^Could not override '{FSDP}'\.$"),
        ("rollout-first", {}, [], 1, r"^\(vLLMHttpServer pid=\d+\) .* EngineCore failed to start"),
        ("provider", {}, [], 1, rf"^ValueError: {SIZE}"),
        ("lora-target", {}, [], 1, r"^ValueError: LoRA target modules \['linear_nope'\] are not in the model"),
        ("no-trainable", {}, [], 0, r"Adapter parameters:   0$"),
    ],
)
def test_a_failure_shows_its_line(
    pair: TreesUnderTest, failure: str, variables: dict[str, str], words: list[str], code: int, line: str
) -> None:
    found, log = pair.train(*words, TINY_VERL_FAILURE=failure, **variables)
    assert found == code, log
    assert re.search(line, log, re.MULTILINE), log
    assert ("Training Progress: 100%" in log) == (code == 0)
    assert ("A worker died or was killed" in log) == (code == 0)


BAD: dict[str, tuple[int, Callable[[dict[str, float]], bool]]] = {
    "nan-at-7": (7, lambda step: math.isnan(step["actor/pg_loss"])),
    "constant-reward": (1, lambda step: step["critic/rewards/min"] == step["critic/rewards/max"] == 1.0),
    "cap-hit": (1, lambda step: step["response_length/clip_ratio"] == 1.0),
    "zero-grad": (1, lambda step: step["actor/grad_norm"] == 0.0),
}


@pytest.mark.parametrize("failure", BAD)
def test_a_bad_signal_lasts_to_the_end(pair: TreesUnderTest, failure: str) -> None:
    code, log = pair.train(TINY_VERL_FAILURE=failure, TOTAL_TRAIN_STEPS="9")
    first, is_bad = BAD[failure]
    assert (code, [is_bad(step) for step in steps(log)]) == (0, [number >= first for number in range(1, 10)])


@pytest.mark.parametrize(
    ("failure", "cluster", "arguments", "answer"),
    [
        ("", None, WITH_PATH, "ConnectionError: Could not find any running Ray instance"),
        ("", None, "", "/bridge/src/megatron/bridge/__init__.py\n"),
        ("", {}, 'address="auto"', "ModuleNotFoundError: No module named 'megatron.bridge'"),
        ("stale-ray", None, WITH_PATH, "/bridge/src/megatron/bridge/__init__.py\n"),
        ("stale-ray", None, 'address="auto"', "/old/Megatron-Bridge/src/megatron/bridge/__init__.py\n"),
        ("stale-ray-pinned", None, WITH_PATH, "/old/Megatron-Bridge/src/megatron/bridge/__init__.py\n"),
        ("worker-import", {}, WITH_PATH, "/site-packages/megatron/bridge/__init__.py\n"),
    ],
)
def test_a_worker_imports_what_its_cluster_lets_it(
    pair: TreesUnderTest, tmp_path: Path, failure: str, cluster: dict[str, str] | None, arguments: str, answer: str
) -> None:
    file = tmp_path / "cluster.json"
    if cluster is not None:
        file.write_text(json.dumps({"env": cluster}))
    script = IMPORT_CHECK.replace("{arguments}", arguments)
    said = pair.start("python3", "-", stdin=script, TINY_VERL_FAILURE=failure, TINY_RAY_CLUSTER=str(file)).stdout
    assert answer in said


@pytest.mark.parametrize("local", [True, False])
def test_ray_stop_ends_only_a_cluster_of_this_machine(pair: TreesUnderTest, tmp_path: Path, local: bool) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"env": {}, "local": local}))
    assert pair.start("ray", "stop", "--force", TINY_RAY_CLUSTER=str(file)).returncode == 0
    assert file.exists() != local


def test_workers_end_with_a_driver_that_is_killed(pair: TreesUnderTest) -> None:
    environment = pair.environment | {"TINY_STEP_SECONDS": "3600"}
    with subprocess.Popen(
        ["bash", WRAPPER], cwd=pair.verl, env=environment, stdout=subprocess.PIPE, text=True
    ) as wrapper:
        assert wrapper.stdout
        started = next(line for line in wrapper.stdout if "(WorkerDict pid=" in line)
        worker = int(re.findall(r"WorkerDict pid=(\d+)", started)[0])
        os.kill(driver_of(worker), signal.SIGKILL)
        wrapper.stdout.read()  # ends when no process is left that could write
    assert wrapper.returncode == 128 + signal.SIGKILL


def driver_of(process: int) -> int:
    """The ancestor that is the driver's Python; uv stands between it and others."""
    while True:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        argv = Path(f"/proc/{process}/cmdline").read_text().split("\0")
        if "python" in os.path.basename(argv[0]) and "verl.trainer.main_ppo" in argv:
            return process


def test_the_readme_names_every_way_to_fail() -> None:
    verl = EXAMPLES / "tiny-verl"
    asked = {
        name for file in verl.rglob("*.py") for name in re.findall(r'asked\("([\w-]+)"\)', file.read_text())
    } | set(re.findall(r'TINY_VERL_FAILURE:-\}" = ([\w-]+)', (verl / WRAPPER).read_text()))
    table = (verl / "README.md").read_text().split("## Ways to fail")[1].split("## Switches")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == asked
