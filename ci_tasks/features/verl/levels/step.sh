#: The bash of a level's one step, behind the settings that `ci_tasks.features.verl.levels.levels` puts before it, which
#: also fills in `@launch@`, the wrapper's lines that choose a Python: preflight, then the functions that train. Lines
#: that begin with `#:` are for readers of this file.
#:
#: Everything that the judge has to know stands in the log, as lines `ci-tasks-verl: …`. The guide's rules that are kept
#: here: import the checkout and nothing else, in the driver and in a Ray worker; `ray stop --force` first; data, model
#: and reward model before workers race for them; verl's own wrapper and no rebuilt command. What runs before a training
#: runs in the wrapper's own Python.
set -uo pipefail
BRIDGE_REPO=$GITHUB_WORKSPACE/Megatron-Bridge VERL_REPO=$GITHUB_WORKSPACE/verl
export BRIDGE_REPO VERL_REPO
export PYTHONPATH=$BRIDGE_REPO/src:$BRIDGE_REPO/3rdparty/Megatron-LM:$VERL_REPO${PYTHONPATH:+:$PYTHONPATH}
if [ -d "$VERL_REPO/bin" ]; then export PATH=$VERL_REPO/bin:$PATH; fi
if [ -n "$simulated" ]; then export HOME=$CI_TASKS_RUN_DIR/tmp/home HF_HOME=$CI_TASKS_RUN_DIR/tmp/home/hf; fi
export HF_HOME=${HF_HOME:-$HOME/.cache/huggingface}
mkdir -p "$HOME" "$HF_HOME" 2> /dev/null
mark() { printf 'ci-tasks-verl: %s: %s: %s\n' "$1" "$2" "$3"; }
stop() {
  mark "$1" "$2" "$3"
  if [ "$2" = blocked ]; then echo "ci-tasks: blocked: $1: $3" >&2; exit 125; fi
  exit 1
}
last() { grep -av '^DEBUG ' | tail -n 1 | tr -d '\r' | cut -c 1-300; }  # uv -v says DEBUG
# A test of Bridge that ends with one of these says nothing about Bridge.
not_bridge="No module named '(?!megatron\\.bridge)|cannot open shared object file|No space left on device"
not_bridge+='|CUDA out of memory|No CUDA GPUs|Found no NVIDIA driver|NVIDIA driver on your system is too old'
not_bridge+='|Max retries exceeded|Connection refused|Name or service not known|Network is unreachable'
not_bridge+="|couldn't connect to 'https|LocalEntryNotFoundError|OfflineModeIsEnabled"
#: Focused checks of Bridge first. A test that failed is told from one that could not be run: only the first ends
#: the run, before it takes a GPU. Without uv this is no Bridge development environment: there only a pass counts.
bridge_checks() {
  local said code last why test='uv run python -m pytest -q'
  command -v uv > /dev/null || test='python3 -m pytest -q'
  if [ -n "$cited" ]; then mark bridge-checks cited "$cited"; return; fi
  if [ -n "$simulated" ] && ! ${test% -q} --version > /dev/null 2>&1; then
    mark bridge-checks simulated "the system's python3 has no pytest (--checks-from cites a run), and a simulated Bridge shows nothing"; return
  fi
  echo "Bridge's own tests: $test $*"
  said=$(COLUMNS=400 $test "$@" 2>&1 | tee >(cat >&2); exit "${PIPESTATUS[0]}"); code=$?
  last=$(grep -v '^[[:space:]]*$' <<< "$said" | last)
  why=$(grep -E '^(FAILED|ERROR) .* - |^E +(ModuleNotFound|Import)Error: ' <<< "$said" | cut -c 1-300)
  if [ "$code" = 0 ] && [[ $last = *' passed'* ]]; then
    mark bridge-checks pass "$last: $test $*$gone"
  elif [[ $test = uv* && $code = [12] ]] && grep -vP "$not_bridge" <<< "$why" | grep -q .; then
    stop bridge-checks fail "$(grep -vP "$not_bridge" <<< "$why" | head -n 1): $test $*"
  else
    mark bridge-checks blocked "exit code $code: $(head -n 1 <<< "${why:-$last}"): $test $*"
  fi
}
cd "$BRIDGE_REPO" || stop bridge-checks blocked "there is no $BRIDGE_REPO"
shopt -s nullglob
units=tests/unit_tests
tests+=($units/models/test_model_provider*.py $units/models/test_param_mapping*.py $units/training/test_integration*.py)
shopt -u nullglob
gone=; [[ ${tests[*]} = *test_integration* ]] || gone=" (the guide's test_integration.py is gone from this Bridge)"
bridge_checks "${tests[@]:-tests/unit_tests/models/test_model_provider_mixin.py}"
if [ -n "${CUDA_VISIBLE_DEVICES:-}${HIP_VISIBLE_DEVICES:-}" ] && [ -n "${ROCR_VISIBLE_DEVICES:-}" ]; then
  mark devices pass "ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES dropped: CUDA's or HIP's is set"
  unset ROCR_VISIBLE_DEVICES
fi
for place in "$HF_HOME" "${MODEL_PATH:+$(dirname "$MODEL_PATH")}"; do
  while [ -n "$place" ] && [ ! -e "$place" ]; do place=$(dirname "$place"); done
  free=$([ -n "$place" ] && df -Pk "$place" 2> /dev/null | awk 'NR == 2 { print int($4 / 1048576) }')
  if [ -n "$free" ] && [ "$free" -lt "$least" ]; then
    stop room blocked "$place has $free GB free of $least; point HF_HOME, HF_HUB_CACHE and MODEL_PATH elsewhere"
  fi
done
mark room pass "HF_HOME=$HF_HOME"
#: The wrapper's own choice of Python, for all that comes before it as well. Its environment is made here, so that
#: the probe is in it before the first training, also in a process whose PYTHONPATH is another. PATH is for example
#: scripts, which do not launch by uv.
cd "$VERL_REPO" || stop uv blocked "there is no $VERL_REPO"
ENGINE=${ENGINE:-vllm} RAY=()
@launch@
py() { "${LAUNCH[@]}" "$@"; }
beside() { "${LAUNCH[@]:0:${#LAUNCH[@]} - 1}" "$@"; }
if [ "${LAUNCH[0]}" = uv ]; then
  locked=("${LAUNCH[@]:2:${#LAUNCH[@]} - 3}"); unset VIRTUAL_ENV
  command -v uv > /dev/null || stop uv blocked "verl's wrapper launches by uv, and there is none on PATH; take an\
 image that has it, install it (pip install uv), or give --env VERL_USE_UV=0 for the python3 on PATH"
  echo "making verl's environment: uv sync ${locked[*]}"
  said=$(uv sync "${locked[@]}" 2>&1) || stop uv blocked "uv sync ${locked[*]}: $(last <<< "$said")"
  VIRTUAL_ENV=$(py -c 'import sys; print(sys.prefix)' | last)
  packages=$(py -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | last)
  IFS=: read -ra paths <<< "$PYTHONPATH"
  for path in "${paths[@]}"; do
    if [ -e "$path/../ci_tasks_probe.pth" ]; then cp "$path"/../ci_tasks_probe* "$packages"; fi
  done
  export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
  mark uv pass "$packages"
fi
fresh_ray() { [ -z "$own_ray" ] || [ -n "${RAY_ADDRESS:-}" ] || beside ray stop --force > /dev/null 2>&1; }
[ -n "$own_ray" ] || mark ray skipped "no ray stop outside of a container: another's Ray may run here"
#: Bridge imports modelopt; an install is the container's set-up and no change of a repository.
modelopt() { py -c 'import modelopt; print(modelopt.__file__)' 2> /dev/null; }
if [ -z "$simulated" ] && ! modelopt > /dev/null; then
  pip=(py -m pip); if [ "${LAUNCH[0]}" = uv ]; then pip=(uv pip); fi
  "${pip[@]}" install --quiet --extra-index-url https://pypi.nvidia.com nvidia-modelopt > /dev/null 2>&1
  modelopt > /dev/null || mark modelopt skipped "it is not there and could not be installed; Bridge may fail to import"
fi
#: The path has to lie in the checkout, or nothing that follows is evidence.
imported() {
  case $2 in
    "$BRIDGE_REPO"/src/*) mark "$1" pass "$2" ;;
    */*.py) stop "$1" fail "$2 is not under $BRIDGE_REPO/src" ;;
    *) stop "$1" blocked "$2" ;;
  esac
}
echo "importing megatron.bridge, here and in a worker of Ray"
#: With the file that raised, but for the standard library's: whose fault it is.
imported import-driver "$(py - 2>&1 << 'PY' | tee /dev/stderr | last
import os, traceback
try:
    import megatron.bridge
    print(megatron.bridge.__file__)
except Exception as error:
    traceback.print_exc()
    said = traceback.format_exception_only(type(error), error)[-1].strip().splitlines()[-1]
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    files += [error.filename] * isinstance(error, SyntaxError)
    library = os.path.dirname(os.__file__)
    own = [file for file in files if file[:1] == "/" and (not file.startswith(library) or "site-packages" in file)]
    print(f"{said} ({own[-1]})" if own and said[-1:] != ")" else said)
PY
)"
fresh_ray
imported import-worker "$(py - "${RAY[0]-}" 2>&1 << 'PY' | last
import os, sys, ray
launch = sys.argv[1].partition("py_executable=")[2]
runtime_env = {"py_executable": launch} if launch not in ("", "null") else {}
runtime_env["env_vars"] = {"PYTHONPATH": os.environ["PYTHONPATH"]}
ray.init(address=os.environ.get("RAY_ADDRESS") or None, runtime_env=runtime_env, log_to_driver=False)
@ray.remote
def bridge_path():
    import megatron.bridge
    return megatron.bridge.__file__
print(ray.get(bridge_path.remote()))
PY
)"
fresh_ray
#: Where files were named, nothing is written: they are there, or the name is wrong.
gsm8k=$HOME/data/gsm8k
if [ -z "${TRAIN_FILES:-}${VAL_FILES:-}" ] && ! [ -e "$gsm8k/train.parquet" -a -e "$gsm8k/test.parquet" ]; then
  py examples/data_preprocess/gsm8k.py --local_save_dir "$gsm8k"
fi
export TRAIN_FILES=${TRAIN_FILES:-$gsm8k/train.parquet} VAL_FILES=${VAL_FILES:-$gsm8k/test.parquet}
for file in "$TRAIN_FILES" "$VAL_FILES"; do
  [ -e "$file" ] || stop data blocked "there is no $file; --train-files and --val-files name files on the host"
done
mark data pass "$TRAIN_FILES $VAL_FILES"
export RM_MODEL_PATH=${RM_MODEL_PATH:-$HOME/models/Skywork/Skywork-Reward-V2-Llama-3.2-1B}
if [ -n "$rule_reward" ]; then
  mark reward-model skipped "disabled: reward-model serving is not tested"
else
  [ -e "$RM_MODEL_PATH" ] || stop reward-model blocked "no $RM_MODEL_PATH; --reward-model DIR or --no-reward-model"
  mark reward-model pass "$RM_MODEL_PATH"
fi
#: Once, before the workers race for it.
export MODEL_PATH=${MODEL_PATH:-$HOME/models/$MODEL_ID}
if [ -n "$dummy" ]; then
  py -m json.tool "$dummy" > /dev/null 2>&1 || stop dummy-config blocked "$dummy is no file of JSON on the host"
  [ -e "$MODEL_PATH/config.json" ] || stop dummy-config blocked "no $MODEL_PATH/config.json: no tokenizer"
elif [ ! -e "$MODEL_PATH/config.json" ]; then
  hf=hf; beside hf --help > /dev/null 2>&1 || hf=huggingface-cli
  echo "downloading $MODEL_ID"
  said=$(beside $hf download "$MODEL_ID" --local-dir "$MODEL_PATH" 2>&1) || stop model blocked "$(last <<< "$said")"
fi
mark model pass "$MODEL_PATH"
#: train NAME CLEAN COMMAND: one training; after one that failed the others are not run. Nor after a level 0 that
#: ended well and shows what makes them worthless; the judge sees more of it, once the run is over.
contradiction() {
  grep -m 1 -oE "'vanilla_mbridge': True" "$1" && return
  steps=$(grep -aE 'step:1 - ' "$1") || echo 'no metrics of step 1'
  grep -m 1 -oiE '[a-z_/]*(loss|kl|entropy|grad_norm|reward)[a-z_/]*:(np\.[a-z0-9]+\()?-?(nan|inf)\b' <<< "$steps"
}
train() {
  printf 'ci-tasks-verl: begin: %s\n' "$1"
  if [ "$2" = 1 ]; then rm -rf -- "$VERL_REPO/checkpoints"; fi
  fresh_ray
  printf 'ci-tasks-verl: command: %s\nci-tasks-verl: clock: %s\n' "$3" "$(date +%s.%N)"
  said=$(mktemp)
  (cd "$VERL_REPO" && eval "$3") 2>&1 | tee "$said"; code=${PIPESTATUS[0]}
  printf '\nci-tasks-verl: clock: %s\nci-tasks-verl: end: %s: %s\n' "$(date +%s.%N)" "$1" "$code"
  why=; if [ "$1 $code" = 'level 0 0' ]; then why=$(contradiction "$said" | head -n 1); fi
  rm -f -- "$said"
  [ "$code" = 0 ] || exit "$code"
  [ -z "$why" ] || stop level-0 fail "$why; no later training is run"
}
#: hashes NAME STEP: of the files of a step's checkpoint
hashes() {
  find "$VERL_REPO/checkpoints" -type f -path "*/global_step_$2/*" 2> /dev/null | sort | head -n 500 |
    while IFS= read -r file; do
      mark file "$1" "$(sha256sum < "$file" | cut -c 1-64) ${file##*"/global_step_$2/"}"
    done
}
