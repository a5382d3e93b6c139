"""The guide's levels: which trainings a level has, what their scripts are given, and what is refused; and the step:
bash that checks what a training needs, in the wrapper's own Python, and then trains."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.levels.levels import (
    MINIMAL,
    WRAPPER,
    LevelRequest,
    Training,
    command,
    limitations,
    render,
    trainings,
)
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "trainings.json")).fixture()
trainings = kept.of(trainings)
render = kept.of(render)
command = kept.of(command)
limitations = kept.of(limitations)

FUSION = "megatron.override_transformer_config.gradient_accumulation_fusion=False"
FEATURE = {"overrides": ("a.b=c",), "proofs": ("active",)}

# level, more of the request: name of the last training, what its environment has beyond level 0's, its overrides, steps
TABLE = [
    (0, {}, "level 0", {}, (), 1),
    (1, {}, "level 1: resume", {"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2", "RESUME_MODE": "auto"}, (), 2),
    (1, {"exact": True}, "level 1: uninterrupted", {"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2"}, (), 2),
    (2, {}, "level 2: dense", {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2"}, (), 1),
    (2, {"variants": ("dense", "expert"), "model_path": "/m"}, "level 2: expert",
     {"COMMON_EP": "2", "COMMON_ETP": "1", "ROUTING_REPLAY_MODE": "disabled"}, (), 1),
    (3, {}, "level 3", {"USE_MEGATRON_FSDP": "True"},
     (f"++actor_rollout_ref.actor.{FUSION}", f"++actor_rollout_ref.ref.{FUSION}", f"++critic.{FUSION}"), 1),
    (4, {**FEATURE, "env": {"X": "1"}}, "level 4", {"X": "1"}, ("a.b=c",), 1),
    (5, {}, "level 5", {"TOTAL_TRAIN_STEPS": "20", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}, (), 20),
]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "more", "name", "beyond", "overrides", "steps"), TABLE, ids=[f"{row[2]} {row[5]}" for row in TABLE]
)
def test_a_level_ends_with_its_training_after_the_smoke(
    level: int, more: dict[str, object], name: str, beyond: dict[str, str], overrides: tuple[str, ...], steps: int
) -> None:
    first, *_, last = [*trainings(LevelRequest(level, **more)), *trainings(LevelRequest(level, **more))[-1:]]  # type: ignore[arg-type]
    assert {name: first.env[name] for name in MINIMAL} == dict(MINIMAL)
    assert (last.name, last.steps, last.overrides) == (name, steps, overrides)
    assert {key: value for key, value in last.env.items() if first.env.get(key) != value} == beyond
    limits = limitations(LevelRequest(level, **more))  # type: ignore[arg-type]
    assert ("no convergence claim" in limits, "save/resume was not requested" in limits) == (level != 5, level != 1)


def test_what_was_left_out_is_a_limitation() -> None:
    other = LevelRequest(0, dummy_config="c", no_reward_model=True, overrides=("a.enforce_eager=True",), script="s")
    differs = {*limitations(LevelRequest(0))} ^ {*limitations(other)}
    assert sorted(note.partition(":")[0] for note in differs) == [
        "dummy config", "enforce_eager", "reward model disabled", "trivial parallelism",
    ]  # fmt: skip


def test_a_resume_keeps_the_checkpoints_of_the_save_before_it() -> None:
    _, save, resume, whole = trainings(LevelRequest(1, exact=True))
    assert (save.resumes, save.env["SAVE_FREQ"]) == (False, "1")
    assert (whole.resumes, whole.same_as) == (False, resume.name)


def test_a_persons_own_settings_go_into_every_training_but_never_change_its_steps() -> None:
    planned = trainings(LevelRequest(1, env={"MICRO_BSZ": "1", "TOTAL_TRAIN_STEPS": "9"}, overrides=("a=b",)))
    assert [training.env["TOTAL_TRAIN_STEPS"] for training in planned] == ["1", "1", "2"]


REFUSED = [
    ({"level": 2, "variants": ("expert",)}, "--variant expert needs a routed checkpoint"),
    ({"level": 4}, "level 4 needs what activates the feature"),
    ({"level": 4, "proofs": ("(",), "env": {"A": "1"}}, "--proof '\\(' is no regular expression"),
    ({"level": 5, "steps": 19}, "level 5 takes 20 to 100 steps, not 19"),
    ({"level": 0, "model_path": "/m", "dummy_config": "c.json"}, "--dummy-config takes an absolute path"),
    ({"level": 0, "dummy_config": "/c.json"}, "--dummy-config takes an absolute path"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wish_that_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainings(LevelRequest(**arguments))  # type: ignore[arg-type]


# -- what a script reads -----------------------------------------------------------------------------------------------

SCRIPT = """\
export LAUNCHED=1
# $ZZZ is read by nobody
ENGINE=${ENGINE:-"vllm"}
COMMON_TP=${COMMON_TP:-2}
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
[ -n "$DUMMY_MODEL_CONFIG_PATH" ] || exit 1
lower=${lower:-1} tp=$LAUNCHED
"""
WITHOUT = {**dict.fromkeys(MINIMAL, ""), "NUM_GPUS": "", "COMMON_TP": ""}
READS_ALL = SCRIPT + "".join(f"echo ${name}\n" for name in WITHOUT)


def given(wrapper: str, env: dict[str, str]) -> dict[str, str]:
    return dict(trainings(LevelRequest(0, env=env), {WRAPPER: wrapper})[0].env)


@pytest.mark.parametrize(
    ("name", "near"), [("COMON_TP", "COMMON_TP"), ("ENGIN", "ENGINE"), ("LAUNCHED", ""), ("ZZZ", "")]
)
def test_what_nobody_reads_is_refused(name: str, near: str) -> None:
    """Also what a script sets itself before it reads it."""
    with pytest.raises(UsageError) as refused:
        given(READS_ALL, {name: "1"})
    assert refused.value.message == f"{WRAPPER} does not read {name}{f'; did you mean {near}?' if near else ''}"


@pytest.mark.parametrize(("name", "off"), [("USE_MEGATRON_FSDP", "False"), ("ROUTING_REPLAY_MODE", "disabled")])
def test_what_turns_off_a_feature_that_this_verl_does_not_know_is_not_asked_of_it(name: str, off: str) -> None:
    older = READS_ALL.replace(f"echo ${name}\n", "")
    assert name not in given(older, {name: off}) and given(older, {name: off})["ENGINE"] == "vllm"
    with pytest.raises(UsageError, match=f"does not read {name}"):
        given(older, {name: "True"})


def script_of_level_4(script: str, **more: object) -> Training:
    wish = LevelRequest(4, script="a.sh", proofs=("x",), model_path="/m", **more)  # type: ignore[arg-type]
    smoke, last = trainings(wish, {WRAPPER: READS_ALL + "$MODEL_PATH\n", "a.sh": script})
    assert {name: smoke.env[name] for name in MINIMAL} == dict(MINIMAL)
    return last


def test_a_script_of_level_4_is_given_what_it_reads_and_nothing_of_the_wrappers_sizes() -> None:
    """An example script keeps its own parallel sizes and LoRA, and is still asked for the path under test."""
    reads = "tp=${COMMON_TP:-8} rank=$LORA_RANK offload=$ALL_OFFLOAD bridge=$VANILLA_MBRIDGE\npath=$MODEL_PATH\n"
    last = script_of_level_4(reads, env={"COMMON_TP": "4"})
    assert last.script == "a.sh" and last.env == {"COMMON_TP": "4", "VANILLA_MBRIDGE": "False", "MODEL_PATH": "/m"}
    assert {"trainer.total_training_steps=1", "trainer.n_gpus_per_node=8", "trainer.nnodes=1"} <= set(last.overrides)


@pytest.mark.parametrize(
    ("env", "message"), [({"LORA_RNK": "4"}, "LORA_RNK; did you mean LORA_RANK?"), ({}, "MODEL_PATH")]
)
def test_a_variable_that_a_script_of_level_4_does_not_read_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        script_of_level_4("echo $LORA_RANK\n", env=env)
    assert refused.value.message == f"a.sh does not read {message}"
    if not env:
        assert "--override actor_rollout_ref.model.path=/m" in refused.value.hint
        script_of_level_4("echo $LORA_RANK\n", overrides=("actor_rollout_ref.model.path=/m",))


# -- the step ----------------------------------------------------------------------------------------------------------

SAMPLE = Path(__file__).parents[4] / "examples/tiny-verl"
WRAPPERS = (SAMPLE / WRAPPER).read_text()


def text_of(request: LevelRequest, wrapper: str = WRAPPERS, **how: Any) -> str:
    return render(request, trainings(request), wrapper, **how)


def test_preflight_comes_before_the_trainings_in_the_guides_order() -> None:
    text = text_of(LevelRequest(1, exact=True))
    order = ["bridge-checks", "devices", "room", "uv", "data", "reward-model", "model"]
    marks = [text.index(f"mark {name} ") for name in order]
    trained = [text.index(f"\ntrain 'level {name}'") for name in ("0", "1: save", "1: resume", "1: uninterrupted")]
    imports = [text.index(f"imported import-{where}") for where in ("driver", "worker")]
    assert marks + trained == sorted(marks + trained)
    assert marks[3] < imports[0] < imports[1] < marks[4]


def test_a_command_is_the_maintained_wrapper_with_its_environment() -> None:
    *_, resume = trainings(LevelRequest(1, model_id="org/it's", no_reward_model=True))
    argv = shlex.split(command(resume))
    assert argv[argv.index("bash") :] == [
        "bash", WRAPPER, "++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}",
        "reward.reward_model.enable=False",
    ]  # fmt: skip


# -- the preflight, with programs that only say how they were called ---------------------------------------------------

PYTHON = """case "$*" in
  *sys.prefix*) echo $ROOT/venv ;;
  *sysconfig*) echo $ROOT/site ;;
  *gsm8k.py*) mkdir -p "$HOME/data/gsm8k"; touch "$HOME"/data/gsm8k/{train,test}.parquet ;;
  *json.tool*) [ -e "$3" ] ;;
  -|-\\ *) cat > /dev/null; echo "$ROOT/Megatron-Bridge/src/megatron/bridge/__init__.py" ;;
  *) echo "$ROOT/Megatron-Bridge/src/megatron/bridge/__init__.py" ;;
esac
"""
PROGRAMS = {
    "python3": PYTHON,
    "uv": 'echo "uv $*" >> "$ROOT/calls"\n[ "$1" != sync ] || exit "${SYNC:-0}"\n'
    'while [ $# != 0 ] && [ "$1" != python3 ] && [ "$1" != ray ] && [ "$1" != hf ]; do shift; done\nexec "$@"\n',
    "ray": 'echo "ray $*" >> "$ROOT/calls"\n',
    "hf": '[ "$1" != download ] || { mkdir -p "$4"; touch "$4/config.json"; }\n',
}


class Machine:
    """A workspace with both trees, a home, and programs that are first on PATH."""

    def __init__(self, root: Path, *without: str) -> None:
        self.root = root
        for name, text in PROGRAMS.items():
            if name not in without:
                self.program(name, text)
        for tree in ("Megatron-Bridge", "verl", "home", "site", "probe/start"):
            (root / tree).mkdir(parents=True)
        (root / "probe/ci_tasks_probe.pth").touch()

    def program(self, name: str, text: str) -> None:
        file = self.root / "bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\nROOT={shlex.quote(str(self.root))}\n{text}")
        file.chmod(0o755)

    def run(self, request: LevelRequest, wrapper: str = WRAPPERS, more: str = "", **how: Any) -> list[str]:
        """The marks of the step up to its first training."""
        lines = self.bash(f"{more}\n{before_trainings(request, wrapper, **how)}").stdout.splitlines()
        mark = "ci-tasks-verl: "
        return [line.removeprefix(mark) for line in lines if line.startswith(mark)]

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "GITHUB_WORKSPACE": str(self.root), "HOME": f"{self.root}/home", "CI_TASKS_RUN_DIR": str(self.root),
            "PYTHONPATH": f"{self.root}/probe/start",
        }  # fmt: skip
        return subprocess.run(["bash", "-c", script], env=env, text=True, capture_output=True)

    @property
    def calls(self) -> str:
        file = self.root / "calls"
        return file.read_text() if file.exists() else ""


def before_trainings(request: LevelRequest, wrapper: str = WRAPPERS, **how: Any) -> str:
    return text_of(request, wrapper, **how).partition("\ntrain ")[0]


def quiet(**more: Any) -> LevelRequest:
    return LevelRequest(0, **{"checks": "3 passed", "no_reward_model": True, "model_id": "org/m", **more})


NO_UV = quiet(env={"VERL_USE_UV": "0"})
MISSING = {"train_files": "/none/t", "val_files": "/none/v"}


def test_the_preflight_runs_in_the_environment_that_the_wrapper_launches_and_puts_the_probe_there(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    lines = machine.run(quiet())
    assert f"uv: pass: {tmp_path}/site" in lines and lines[-1].startswith("model: pass: ")
    assert (tmp_path / "site/ci_tasks_probe.pth").exists()
    sync, *rest = machine.calls.splitlines()
    extras = "--frozen --all-packages --extra vllm --extra megatron --extra math"
    assert sync == f"uv sync {extras}"
    launched = [line.removeprefix(f"uv run {extras} ").split()[0] for line in rest if line.startswith("uv ")]
    assert {"python3", "ray", "hf"} == set(launched)
    assert any("gsm8k.py" in line for line in rest)


MISSING_PARTS = [
    (quiet(), WRAPPERS, "uv", "", "uv: blocked: verl's wrapper launches by uv, and there is none on PATH; take"),
    (quiet(), WRAPPERS, "", "export SYNC=2", "uv: blocked: uv sync --frozen"),
    (NO_UV, WRAPPERS, "uv", "", "model: pass"),
    (quiet(), "python3 -m verl.trainer.main_ppo\n", "uv", "", "model: pass"),
    (quiet(**MISSING), WRAPPERS, "", "", "data: blocked: there is no /none/t; --train-files"),
    (quiet(no_reward_model=False), WRAPPERS, "", "", "reward-model: blocked: no "),
    (quiet(model_path="/none", dummy_config="/none.json"), WRAPPERS, "", "", "dummy-config: blocked: /none.js"),
    (quiet(model_path="/none", dummy_config="/etc/passwd"), WRAPPERS, "", "", "dummy-config: blocked: no /none"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "wrapper", "without", "more", "line"), MISSING_PARTS)
def test_what_is_missing_blocks_the_run_before_a_training(
    tmp_path: Path, request_: LevelRequest, wrapper: str, without: str, more: str, line: str
) -> None:
    machine = Machine(tmp_path, without)
    assert machine.run(request_, wrapper, more)[-1].startswith(line)
    assert not (request_.train_files and list((tmp_path / "home/data").glob("*"))), "nothing is written for named files"


def test_the_preflight_has_what_uv_is_told() -> None:
    assert "\nexport UV_PYTHON=3.12\n" in text_of(quiet(env={"UV_PYTHON": "3.12"}))


def test_ray_is_stopped_in_a_container_of_its_own_only(tmp_path: Path) -> None:
    for contained in (True, False):
        machine = Machine(tmp_path / str(contained))
        lines = machine.run(quiet(), contained=contained)
        assert ("ray stop --force" in machine.calls) is contained
        assert any(line.startswith("ray: skipped") for line in lines) is not contained


CHECKS = [  # pytest's or uv's exit code, what it prints → the mark, or the end of the run
    (0, "3 passed in 1s", "pass: 3 passed in 1s: uv run python -m pytest -q extra::test TEST (the guide's test_integr"),
    (0, "no tests ran", "blocked: exit code 0: no tests ran"),
    (1, "FAILED a.py::t - AssertionError\n1 failed", "fail: FAILED a.py::t - AssertionError: uv run"),
    (1, "FAILED a.py::t - ModuleNotFoundError: No module named 'foo'\n1 failed",
     "blocked: exit code 1: FAILED a.py::t"),
    (2, "E   ModuleNotFoundError: No module named 'foo'\nERROR a.py\n1 error", "blocked: exit code 2: E   Module"),
    (2, "E   ModuleNotFoundError: No module named 'megatron.bridge.x'\nERROR a.py\n1 error",
     "fail: E   ModuleNotFound"),
    (4, "ERROR: file or directory not found: x.py", "blocked: exit code 4: ERROR: file or directory not found"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "outcome"), CHECKS)
def test_bridge_checks_that_fail_are_told_from_those_that_cannot_run(
    tmp_path: Path, code: int, text: str, outcome: str
) -> None:
    test = "tests/unit_tests/models/test_model_provider_mixin.py"
    machine = Machine(tmp_path)
    (tmp_path / "Megatron-Bridge" / test).parent.mkdir(parents=True)
    (tmp_path / "Megatron-Bridge" / test).touch()
    machine.program("uv", f"cat <<'END'\n{text}\nEND\nexit {code}\n")
    lines = machine.run(quiet(checks="", bridge_tests=("extra::test",), env={"VERL_USE_UV": "0"}))
    assert lines[0].startswith(f"bridge-checks: {outcome.replace('TEST', test)}")
    # Only a test that failed ends the run.
    assert (lines[1:] == []) is outcome.startswith("fail")


CONTRADICTED_BY_OUTPUT = [
    ("'vanilla_mbridge': True,\nstep:1 - actor/pg_loss:0.1", "'vanilla_mbridge': True"),
    ("step:1 - critic/vf_explained_var:nan - actor/pg_loss:np.float64(nan)", "actor/pg_loss:np.float64(nan"),
    ("step:0 - val:1", "no metrics of step 1"),
    ("'vanilla_mbridge': False\nstep:1 - critic/vf_explained_var:nan - actor/pg_loss:0.1", ""),
]


@pytest.mark.parametrize(("said", "why"), CONTRADICTED_BY_OUTPUT)
def test_a_level_0_that_its_own_output_contradicts_ends_the_run(tmp_path: Path, said: str, why: str) -> None:
    train = f"train 'level 0' 1 {shlex.quote(f'echo {shlex.quote(said)}')}; train other 1 true"
    done = Machine(tmp_path).bash(f"{before_trainings(quiet())}\n{train}")
    assert (done.returncode, "begin: other" in done.stdout) == ((1, False) if why else (0, True)), done.stdout
    assert why in done.stdout and ("level-0: fail" in done.stdout) is bool(why)
