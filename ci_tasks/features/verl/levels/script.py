"""The one step of a level's job: preflight, then the trainings one after another, in one container.

Everything that the judge has to know stands in the log, as lines `ci-tasks-verl: …`. The guide's rules that are kept
here: import the checkout and nothing else, in the driver and in a Ray worker; `ray stop --force` first; data, model and
reward model before workers race for them; verl's own wrapper and no rebuilt command.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_tasks.features.verl.levels.levels import WRAPPER, LevelRequest, Training

BRIDGE, VERL = "Megatron-Bridge", "verl"  # the two trees, side by side in the run's workspace
# What of Bridge concerns the provider and its integration, as far as a revision has it.
BRIDGE_TESTS = (
    "tests/unit_tests/models/test_model_provider*.py",
    "tests/unit_tests/models/test_param_mapping*.py",
    "tests/unit_tests/training/test_integration*.py",
)
# A test that ends with one of these says nothing about Bridge.
_NOT_BRIDGE = "|".join(
    (
        "No module named '(?!megatron\\.bridge)",
        "cannot open shared object file",
        "No space left on device",
        "CUDA out of memory",
        "No CUDA GPUs|Found no NVIDIA driver|NVIDIA driver on your system is too old",
        "Max retries exceeded|Connection refused|Name or service not known|Network is unreachable",
        "couldn't connect to 'https|LocalEntryNotFoundError|OfflineModeIsEnabled",
    )
)
_ROOM_GB = 20  # for a small checkpoint, its cache and what verl saves

_HEAD = r"""set -uo pipefail
BRIDGE_REPO=$GITHUB_WORKSPACE/{bridge} VERL_REPO=$GITHUB_WORKSPACE/{verl}
export BRIDGE_REPO VERL_REPO
export PYTHONPATH=$BRIDGE_REPO/src:$BRIDGE_REPO/3rdparty/Megatron-LM:$VERL_REPO${{PYTHONPATH:+:$PYTHONPATH}}
export HF_HOME=${{HF_HOME:-$HOME/.cache/huggingface}}
if [ -d "$VERL_REPO/bin" ]; then export PATH=$VERL_REPO/bin:$PATH; fi
mark() {{ printf 'ci-tasks-verl: %s: %s: %s\n' "$1" "$2" "$3"; }}
stop() {{ mark "$1" "$2" "$3"; if [ "$2" = blocked ]; then exit 125; fi; exit 1; }}
last() {{ tail -n 1 | tr -d '\r' | cut -c 1-300; }}
# The Python that the wrapper will use: newer ones go through uv, unless they are told not to.
py() {{
  if [ "${{VERL_USE_UV:-1}}" != 0 ] && grep -q VERL_USE_UV "$VERL_REPO/{wrapper}" && command -v uv > /dev/null; then
    extras="--extra ${{ENGINE:-vllm}} --extra megatron --extra math"
    (cd "$VERL_REPO" && uv run --frozen --all-packages $extras python3 "$@")
  else
    python3 "$@"
  fi
}}
"""

_HOME = r"""
export HOME=$CI_TASKS_RUN_DIR/tmp/home HF_HOME=$CI_TASKS_RUN_DIR/tmp/home/hf
mkdir -p "$HOME"
"""

_CHECKS = r"""
# Focused checks of Bridge first. A test that failed is told from one that could not be run: only the first ends the
# run, before it takes a GPU. Without uv this is no Bridge development environment: there only a pass says something.
cd "$BRIDGE_REPO" || stop bridge-checks blocked "there is no $BRIDGE_REPO"
bridge_checks() {{
  local said code last why
  if [ $# = 0 ]; then
    mark bridge-checks skipped "this revision of Bridge has none of "{names}"; --test FILE names others"
    return
  fi
  local python=(uv run python)
  if ! command -v uv > /dev/null 2>&1; then
    {without_uv}
    python=(python3)
  fi
  said=$(mktemp)
  COLUMNS=400 "${{python[@]}}" -m pytest -q "$@" 2>&1 | tee "$said"
  code=${{PIPESTATUS[0]}}
  last=$(grep -v '^[[:space:]]*$' "$said" | last)
  why=$(grep -E '^(FAILED|ERROR) .* - |^E +(ModuleNotFound|Import)Error: ' "$said" | cut -c 1-300)
  rm -f -- "$said"
  if [ "$code" = 0 ] && [[ $last = *' passed'* ]]; then
    mark bridge-checks pass "$last: ${{python[*]}} -m pytest -q $*"
  elif [ "$code" = 0 ]; then
    mark bridge-checks skipped "no test ran: $last"
  elif [[ ${{python[0]}} = uv && $code = [12] ]] && printf '%s\n' "$why" | grep -vP {not_bridge} | grep -q .; then
    why=$(printf '%s\n' "$why" | grep -vP {not_bridge} | head -n 1)
    stop bridge-checks fail "$why: uv run python -m pytest -q $*"
  else
    why=$(printf '%s\n' "$why" | head -n 1)
    mark bridge-checks blocked "exit code $code: ${{why:-$last}}: ${{python[*]}} -m pytest -q $*"
  fi
}}
shopt -s nullglob
found=({patterns})
shopt -u nullglob
bridge_checks "${{found[@]}}" {tests}
"""

_SIMULATED_CHECKS = 'mark bridge-checks simulated "no uv here, and a simulated Bridge shows nothing"; return'

_DEVICES = r"""
if [ -n "${CUDA_VISIBLE_DEVICES:-}${HIP_VISIBLE_DEVICES:-}" ] && [ -n "${ROCR_VISIBLE_DEVICES:-}" ]; then
  mark devices pass "ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES dropped: CUDA's or HIP's is set"
  unset ROCR_VISIBLE_DEVICES
fi
"""

_ROOM = r"""
mkdir -p "$HF_HOME" 2> /dev/null
for place in "$HF_HOME" "${{MODEL_PATH:+$(dirname "$MODEL_PATH")}}"; do
  while [ -n "$place" ] && [ ! -e "$place" ]; do place=$(dirname "$place"); done
  free=$([ -n "$place" ] && df -Pk "$place" 2> /dev/null | awk 'NR == 2 {{ print int($4 / 1048576) }}')
  if [ -n "$free" ] && [ "$free" -lt {least} ]; then
    stop room blocked "$place has $free GB free of {least}; point HF_HOME, HF_HUB_CACHE and MODEL_PATH elsewhere"
  fi
done
mark room pass "HF_HOME=$HF_HOME"
"""

_MODELOPT = r"""
# Bridge imports it; an install is the container's set-up and no change of a repository.
py -c 'import modelopt' 2> /dev/null || py -m pip show nvidia-modelopt > /dev/null 2>&1 || {
  index=https://pypi.nvidia.com
  py -m pip install --quiet --retries 1 --timeout 15 --extra-index-url $index nvidia-modelopt > /dev/null 2>&1
}
if found=$(py -c 'import modelopt; print(modelopt.__file__)' 2> /dev/null | last) && [ -n "$found" ]; then
  mark modelopt pass "$found"
else
  mark modelopt skipped "nvidia-modelopt is not there and could not be installed; Bridge may fail to import"
fi

"""
_RAY = r"""
fresh_ray() { if [ -z "${RAY_ADDRESS:-}" ]; then ray stop --force > /dev/null 2>&1 || true; fi; }
"""
_NOT_OUR_RAY = r"""
mark ray skipped "no ray stop outside of a container: another's Ray may run here"
fresh_ray() { :; }
"""
_NODES = r"""
# One Ray over all nodes of the job: the others join at this address by themselves.
ray stop --force > /dev/null 2>&1 || true
said=$(ray start --head --port=6379 --node-ip-address="$MASTER_ADDR" --disable-usage-stats 2>&1) ||
  stop ray blocked "$(printf '%s\n' "$said" | last)"
export RAY_ADDRESS=$MASTER_ADDR:6379
found=$(py - {nodes} 2>&1 << 'PY' | last
import os, sys, time, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
end = time.monotonic() + 300
count = 0
while count < int(sys.argv[1]) and time.monotonic() < end:
    count = sum(node["Alive"] for node in ray.nodes())
    time.sleep(1)
print(count)
PY
)
[ "$found" = {nodes} ] || stop ray blocked "{nodes} nodes were asked for, and Ray has: $found"
mark ray pass "{nodes} nodes at $RAY_ADDRESS"
"""
_NO_MODELOPT = """
mark modelopt skipped "a simulated Bridge needs none"
"""

_IMPORT = r"""
# The path has to lie in the checkout, or nothing that follows is evidence.
found=$(py -c 'import megatron.bridge; print(megatron.bridge.__file__)' 2>&1 | last)
case $found in
  "$BRIDGE_REPO"/src/*) mark import-driver pass "$found" ;;
  */*.py) stop import-driver fail "$found is not under $BRIDGE_REPO/src" ;;
  *) stop import-driver blocked "$found" ;;
esac

fresh_ray
found=$(py - 2>&1 << 'PY' | last
import os
import ray
address = os.environ.get("RAY_ADDRESS") or None
ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}, log_to_driver=False)
@ray.remote
def bridge_path():
    import megatron.bridge
    return megatron.bridge.__file__
print(ray.get(bridge_path.remote()))
PY
)
case $found in
  "$BRIDGE_REPO"/src/*) mark import-worker pass "$found" ;;
  */*.py) stop import-worker fail "$found is not under $BRIDGE_REPO/src" ;;
  *) stop import-worker blocked "$found" ;;
esac
fresh_ray
"""

_DATA = r"""
cd "$VERL_REPO" || stop data blocked "there is no $VERL_REPO"
TRAIN_FILES=${TRAIN_FILES:-$HOME/data/gsm8k/train.parquet} VAL_FILES=${VAL_FILES:-$HOME/data/gsm8k/test.parquet}
if [ ! -e "$TRAIN_FILES" ] || [ ! -e "$VAL_FILES" ]; then
  python3 examples/data_preprocess/gsm8k.py --local_save_dir "$(dirname "$TRAIN_FILES")" ||
    stop data blocked "$TRAIN_FILES is not there, and could not be prepared"
fi
[ -e "$TRAIN_FILES" ] && [ -e "$VAL_FILES" ] || stop data blocked "there is no $TRAIN_FILES or no $VAL_FILES"
mark data pass "$TRAIN_FILES $VAL_FILES"
export TRAIN_FILES VAL_FILES
"""

_REWARD = r"""
RM_MODEL_PATH=${RM_MODEL_PATH:-$HOME/models/Skywork/Skywork-Reward-V2-Llama-3.2-1B}
[ -e "$RM_MODEL_PATH" ] ||
  stop reward-model blocked "there is no $RM_MODEL_PATH; --reward-model DIR or --no-reward-model"
mark reward-model pass "$RM_MODEL_PATH"
export RM_MODEL_PATH
"""
_NO_REWARD = """
mark reward-model skipped "disabled: reward-model serving is not tested"
"""

_MODEL = r"""
# Once, before the workers race for it.
MODEL_PATH=${MODEL_PATH:-$HOME/models/$MODEL_ID}
if [ ! -e "$MODEL_PATH/config.json" ]; then
  fetch=hf; command -v hf > /dev/null 2>&1 || fetch=huggingface-cli
  said=$("$fetch" download "$MODEL_ID" --local-dir "$MODEL_PATH" 2>&1) ||
    stop model blocked "$(printf '%s\n' "$said" | last)"
fi
mark model pass "$MODEL_PATH"
export MODEL_PATH
"""

_TRAIN = r"""
# hashes NAME STEP: of the files of a step's checkpoint, once its training has ended
hashes() {
  find "$VERL_REPO/checkpoints" -type f -path "*/global_step_$2/*" 2> /dev/null | sort | head -n 500 |
    while IFS= read -r file; do
      mark file "$1" "$(sha256sum < "$file" | cut -c 1-64) ${file##*"/global_step_$2/"}"
    done
}
train() {
  # train NAME CLEAN COMMAND: one training; after one that failed the others are not run
  mark begin "$1" "" | sed 's/: $//'
  if [ "$2" = 1 ]; then rm -rf -- "$VERL_REPO/checkpoints"; fi
  fresh_ray
  printf 'ci-tasks-verl: command: %s\n' "$3"
  printf 'ci-tasks-verl: clock: %s\n' "$(date +%s.%N)"
  (cd "$VERL_REPO" && eval "$3"); code=$?
  printf '\nci-tasks-verl: clock: %s' "$(date +%s.%N)"
  printf '\nci-tasks-verl: end: %s: %s\n' "$1" "$code"
  [ "$code" = 0 ] || exit "$code"
}
"""


def render(
    request: LevelRequest, trainings: Sequence[Training], *, simulated: bool = False, contained: bool = True
) -> str:
    """The text of the step, for bash. A `simulated` run, on a host that simulates GPUs, has a home of its own: the
    sample's models and data are none that anybody wants to keep. One that is not `contained` leaves others' Ray
    alone."""
    first = trainings[0].env
    compared = {name for training in trainings if training.same_as for name in (training.name, training.same_as)}
    exports = [f"export {name}={shlex.quote(first[name])}" for name in _OF_PREFLIGHT if name in first]
    parts = [
        _HEAD.format(bridge=BRIDGE, verl=VERL, wrapper=WRAPPER),
        _HOME if simulated else "",
        "".join(f"{line}\n" for line in exports),
        _CHECKS.format(
            patterns=" ".join(BRIDGE_TESTS),
            names=shlex.quote(", ".join(BRIDGE_TESTS)),
            tests=" ".join(map(shlex.quote, request.bridge_tests)),
            not_bridge=shlex.quote(_NOT_BRIDGE),
            without_uv=_SIMULATED_CHECKS if simulated else "",
        ),
        _DEVICES,
        _ROOM.format(least=_ROOM_GB if not request.dummy_config else 1),
        _RAY if contained or simulated else _NOT_OUR_RAY,
        _NODES.format(nodes=request.nodes) if request.nodes > 1 else "",
        _NO_MODELOPT if simulated else _MODELOPT,
        _IMPORT,
        _DATA,
        _NO_REWARD if request.no_reward_model else _REWARD,
        "" if request.dummy_config else _MODEL,
        _TRAIN,
        *(
            f"train {shlex.quote(training.name)} {int(training.clean)} {shlex.quote(command(training))}\n"
            + (f"hashes {shlex.quote(training.name)} {training.steps}\n" if training.name in compared else "")
            for training in trainings
        ),
    ]
    return "".join(parts)


_DIRECTORIES = ("MODEL_ID", "MODEL_PATH", "RM_MODEL_PATH", "TRAIN_FILES", "VAL_FILES", "HF_HOME", "HF_HUB_CACHE")
_MACHINE = (
    "ENGINE",
    "RAY_ADDRESS",
    "VERL_USE_UV",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
_OF_PREFLIGHT = (*_DIRECTORIES, *_MACHINE)  # what a training is given that the checks before it have to see as well
_WORKERS_PATH = '"++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}"'


def command(training: Training) -> str:
    """The wrapper with its environment and overrides, as one line for a shell in verl's root."""
    env = [f"{name}={shlex.quote(value)}" for name, value in training.env.items()]
    overrides = [shlex.quote(override) for override in training.overrides]
    return " ".join([*env, "bash", shlex.quote(training.script), _WORKERS_PATH, *overrides])
