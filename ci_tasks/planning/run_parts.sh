#: The bash that every run.sh begins and ends with: what GitHub's runner does around a step. `ci_tasks.planning.script`
#: puts these parts together; lines that begin with `#:` are for readers of this
#: file, and `@name@` is filled in.
#:
#: Variables of our own begin with an underscore, so that a workflow's `env` may use any other name. GITHUB_ENV,
#: GITHUB_PATH and GITHUB_OUTPUT are read as GitHub's "Workflow commands" describe them.

#: [HEAD]
#!/usr/bin/env bash
# @title@, planned by ci-tasks.
# By hand: bash run.sh   (elsewhere: GITHUB_WORKSPACE=DIR bash run.sh, with a checkout@commit@ in DIR)
@note@set -uo pipefail
CI_TASKS_RUN_DIR=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
export CI_TASKS_RUN_DIR
export GITHUB_WORKSPACE="${GITHUB_WORKSPACE:-}"
[ -n "$GITHUB_WORKSPACE" ] || GITHUB_WORKSPACE=@workspace@
_secrets=(@secrets@)
_reserved='@reserved@'

#: [ADAPTER_CHECK]
#: Without the adapter, CI's own words (`--pull=always --privileged …`) would reach this machine's docker.
blocked() { echo "ci-tasks: blocked: $*" >&2; exit 125; }
[ -n "${CI_TASKS_INSIDE:-}" ] || [ -x "$CI_TASKS_RUN_DIR/bin/docker" ] ||
  blocked "cannot execute the run's bin/docker: is $(stat -c %m -- "$CI_TASKS_RUN_DIR") mounted noexec?" \
    "Set another \`workspace\` in hosts.yaml, or CI_TASKS_HOME for runs on this machine"

#: [FUNCTIONS]
[ -d "$GITHUB_WORKSPACE" ] || blocked "there is no checkout at $GITHUB_WORKSPACE; set GITHUB_WORKSPACE"
case $GITHUB_WORKSPACE in /*) ;; *) GITHUB_WORKSPACE=$(CDPATH='' cd -- "$GITHUB_WORKSPACE" && pwd) ;; esac
_tmp=$CI_TASKS_RUN_DIR/tmp
{ mkdir -p -- "$_tmp" "$CI_TASKS_RUN_DIR/artifacts" && chmod 700 -- "$_tmp" && : > "$_tmp/later"; } ||
  blocked "cannot write in $CI_TASKS_RUN_DIR"
if [ -n "${_before:-}" ] && [ -z "${CI_TASKS_INSIDE:-}" ]; then  # a container does not see it there
  cp -- "$_before/tmp/later" "$_tmp/before" || blocked "$_before is gone, so its steps cannot be continued"
fi
# A login shell reads /etc/profile, which replaces PATH on Debian and so hides the venv and the container adapter: what
# it was started with comes first again. Bash expands the value of BASH_ENV itself; other shells do nothing there.
if [ -z "${CI_TASKS_INSIDE:-}" ]; then
  cat > "$_tmp/login-shell" << 'END_OF_LOGIN_SHELL' || blocked "cannot write in $_tmp"
if shopt -q login_shell && [ -r "/proc/$$/environ" ]; then
  while IFS= read -r -d '' _entry; do
    case $_entry in PATH=*) case $PATH: in "${_entry#PATH=}":*) ;; *) PATH=${_entry#PATH=}:$PATH ;; esac ;; esac
  done < "/proc/$$/environ"
  unset _entry
fi
END_OF_LOGIN_SHELL
  export BASH_ENV='$CI_TASKS_RUN_DIR/tmp/login-shell'
fi
_status=success _exit_code=0 _number=0 _step='' _id='' _adapter='' _odd=() _late=()
declare -A _steps=()  # what steps leave for the expressions of later ones

event() { printf '{"t": %s, %s}\n' "$(date +%s.%N)" "$1" >> "$CI_TASKS_RUN_DIR/events.jsonl"; }

# begin NAME RUNS_AFTER_SUCCESS RUNS_AFTER_FAILURE EVENT: whether the step runs, by its `if:` and the job's state
begin() {
  if [ "$_status" = success ]; then [ "$2" = 1 ] || return 1; else [ "$3" = 1 ] || return 1; fi
  _number=$((_number + 1)) _step=$1
  printf '# step %s\n' "$_number" >> "$_tmp/later"
  if [ "$_number" -lt "${_first:-1}" ]; then restore; return 1; fi
  export GITHUB_ENV=$_tmp/env GITHUB_PATH=$_tmp/path GITHUB_STATE=$_tmp/state
  export GITHUB_OUTPUT=$_tmp/output GITHUB_STEP_SUMMARY=$CI_TASKS_RUN_DIR/artifacts/summary.md
  : > "$GITHUB_ENV"; : > "$GITHUB_PATH"; : > "$GITHUB_STATE"; : > "$GITHUB_OUTPUT"
  event "$4"
  echo "##[group]Run $1"
}

# restore: what the step, which a retry does not run again, left for later ones and their `if:`
restore() {
  local _line _its=
  while IFS= read -r _line; do
    case $_line in
      "# step $_number") _its=1 ;;
      '# step '*) _its= ;;
      *) [ -z "$_its" ] || printf '%s\n' "$_line" ;;
    esac
  done < "$_tmp/before" > "$_tmp/restored"
  cat "$_tmp/restored" >> "$_tmp/later"
  PATH=${PATH#"$_adapter"}; . "$_tmp/restored"; PATH=$_adapter$PATH
}

# script [-n] WORDS…: the step's text, from standard input, run by WORDS, in which {0} is its file; -n: the text has no
# newline at its end
script() {
  local _file=$_tmp/step-$_number _text _word _words=() _given _name _short=
  if [ "$1" = -n ]; then _short=1; shift; fi
  _given=("$@")
  _text=$(cat; printf .); _text=${_text%.}
  printf '%s' "${_text//[$'\002\003']/}"; echo '##[endgroup]'
  if [ -n "$_short" ]; then _text=${_text%$'\n'}; fi
  # Backslash and ampersand mean something in a replacement of newer bash: the quotes keep them as they are.
  for _name in ${_secrets[@]+"${_secrets[@]}"}; do
    _text=${_text//$'\002'"$_name"$'\003'/"${!_name:-}"}
  done
  set -- ${_late[@]+"${_late[@]}"}
  while [ $# != 0 ]; do _text=${_text//$'\002'"$1"$'\003'/"$2"}; shift 2; done
  (umask 077; printf '%s' "$_text" > "$_file") || blocked "cannot write in $_tmp"
  for _word in "${_given[@]}"; do _word=${_word//'{0}'/"$_file"}; _words+=("$_word"); done
  if [ "${#_odd[@]}" != 0 ]; then _words=(env -- "${_odd[@]}" "${_words[@]}"); fi
  "${_words[@]}" < /dev/null
}

# keep NAME VALUE: a variable for the steps that follow; one that bash cannot export waits for `env`
keep() {
  if [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*$ && " $_reserved " != *" $1 "* ]]; then
    export "$1=$2"; printf 'export %s=%q\n' "$1" "$2" >> "$_tmp/later"
  else
    _odd+=("$1=$2"); printf '_odd+=(%q)\n' "$1=$2" >> "$_tmp/later"
  fi
}

# leave NAME VALUE: an output of the step, for the expressions of those that follow
leave() {
  local _key=$_id.outputs.${1,,}
  _steps[$_key]=$2; printf '_steps[%q]=%q\n' "$_key" "$2" >> "$_tmp/later"
}

# ended OUTCOME CONCLUSION
ended() {
  _steps[$_id.outcome]=$1 _steps[$_id.conclusion]=$2
  printf '_steps[%s.outcome]=%s _steps[%s.conclusion]=%s\n' "$_id" "$1" "$_id" "$2" >> "$_tmp/later"
}

# What expressions ask of two texts, case aside.
same() { [ "${1,,}" = "${2,,}" ]; }
contains() { [[ ${1,,} == *"${2,,}"* ]]; }
starts_with() { [[ ${1,,} == "${2,,}"* ]]; }
ends_with() { [[ ${1,,} == *"${2,,}" ]]; }

# hash_files PATTERN…: the SHA-256 of all files of the checkout that the patterns match. GitHub's is another one where
# several patterns begin in different directories: it walks through these in the order of the patterns.
hash_files() (
  cd -- "$GITHUB_WORKSPACE" && shopt -s globstar dotglob nullglob && export LC_ALL=C IFS='' || exit
  declare -A _found=()
  for _pattern; do
    _glob=${_pattern#!} _glob=${_glob#"$PWD"/} _glob=${_glob#./}
    case $_glob in '' | /* | '#'* | .. | ../* | */.. | */../*) continue ;; esac
    for _file in $_glob $_glob/**; do
      if [ "${_pattern#!}" = "$_pattern" ] && [ -f "$_file" ]; then _found[$_file]=1; else _found[$_file]=''; fi
    done
  done
  [ "${#_found[@]}" != 0 ] || exit 0
  # In the order of a walk through the directories, which comes to a/b before a.b.
  _sums=$(printf '%s\0' "${!_found[@]}" | tr / '\1' | sort -z | tr '\1' / | while read -r -d '' _file; do
    [ -z "${_found[$_file]-}" ] || sha256sum < "$_file" | sed 's/ .*//; s/../\\x&/g'
  done)
  [ -z "$_sums" ] || printf %b "${_sums//$'\n'/}" | sha256sum | cut -d' ' -f1
)

# take FILE FUNCTION: each name and value that the step wrote to GITHUB_ENV or GITHUB_OUTPUT; fails where GitHub would
take() {
  local _line _name _value _end _first _of=GITHUB_ENV
  [ "$1" = "$GITHUB_ENV" ] || _of=GITHUB_OUTPUT
  while IFS= read -r _line || [ -n "$_line" ]; do
    _name=${_line%%[=<]*}
    case $_line in
      '') ;;
      "$_name"'<<'*)
        _end=${_line#*<<} _value='' _first=1
        while :; do
          if ! IFS= read -r _line && [ -z "$_line" ]; then
            echo "##[error]$_of: the value of $_name has no line '$_end' at its end"; return 1
          fi
          if [ "$_line" = "$_end" ]; then break; fi
          if [ -z "$_first" ]; then _value+=$'\n'; fi
          _value+=$_line _first=''
        done
        "$2" "$_name" "$_value" ;;
      *=*) "$2" "${_line%%=*}" "${_line#*=}" ;;
      *) echo "##[error]$_of: not NAME=VALUE: $_line"; return 1 ;;
    esac
  done < "$1"
}

# finish EXIT_CODE CONTINUE_ON_ERROR ID MINUTES: take over what the step left for later ones
finish() {
  local _line _code=$1 _id=${3,,} _outcome=success
  while IFS= read -r _line || [ -n "$_line" ]; do
    if [ -z "$_line" ]; then continue; fi
    PATH=$_adapter$_line:${PATH#"$_adapter"}; printf 'PATH=%q:$PATH\n' "$_line" >> "$_tmp/later"
  done < "$GITHUB_PATH"
  take "$GITHUB_ENV" keep || [ "$_code" != 0 ] || _code=1
  if [ -n "$_id" ]; then
    take "$GITHUB_OUTPUT" leave || [ "$_code" != 0 ] || _code=1
    mkdir -p "$CI_TASKS_RUN_DIR/artifacts/outputs" && cp "$GITHUB_OUTPUT" "$CI_TASKS_RUN_DIR/artifacts/outputs/$3"
    [ "$_code" = 0 ] || _outcome=failure
    if [ "$2" = 1 ]; then ended "$_outcome" success; else ended "$_outcome" "$_outcome"; fi
  fi
  if [ "$_code" != 0 ]; then
    case $4,$_code in
      ?*,124 | ?*,137) echo "##[error]The action '$_step' has timed out after $4 minutes." ;;
      *) echo "##[error]Process completed with exit code $_code." ;;
    esac
    if [ "$2" != 1 ] && [ "$_status" = success ]; then
      _status=failure _exit_code=$_code
      event '"event": "step failed"'
    fi
  fi
}

#: [PYTEST]
# Evidence of the tests that ran, without touching them; pytest splits this as a shell does.
_junit=$CI_TASKS_RUN_DIR/artifacts/junit.xml
_junit="--junitxml='${_junit//\'/\'\\\'\'}'"
[ -n "${CI_TASKS_INSIDE:-}" ] || export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }$_junit"

#: [ADAPTER]
#: First on PATH, so that no venv and no step comes before it; outside only, a job's container has a docker of its own.
if [ -z "${CI_TASKS_INSIDE:-}" ]; then
  _adapter=$CI_TASKS_RUN_DIR/bin:
  PATH=$_adapter$PATH
fi

#: [TAIL]
exit "$_exit_code"

#: [STORE_PACKAGES]
#: What a job got from an index is kept for the next with the same steps; what the steps themselves take is little then.
if [ "$_status" = success ] && [ -z "${_kept:-}" ]; then
  "$_python" -I "$CI_TASKS_RUN_DIR/bin/agent.pyz" store-packages "$CI_TASKS_RUN_DIR" "$_venv" ||
    blocked "packages of $_venv are missing"
fi

#: [NOTE_PACKAGES]
[ ! -s "$CI_TASKS_RUN_DIR/packages" ] ||
  event "\"event\": \"packages\", \"name\": \"$(cat "$CI_TASKS_RUN_DIR/packages")\""

#: [SETUP]
# The job's leading steps, the same for every row, are done once.
_setup=@directory@
[ -f "$_setup/ready" ] || bash "$_setup/run.sh" || blocked "the install steps failed; see $_setup/log"
[ ! -s "$_setup/packages" ] ||
  event "\"event\": \"packages\", \"name\": \"$(cat "$_setup/packages")\""

# What this row installs goes into a venv of its own, over the shared one.
_venv=${_kept:-$CI_TASKS_RUN_DIR}/tmp/venv
[ -x "$_venv/bin/python" ] ||
  "$_setup/venv/bin/python" -I "$CI_TASKS_RUN_DIR/bin/agent.pyz" row-venv "$_venv" "$_setup/venv" ||
  blocked "cannot make a venv over $_setup/venv"
export VIRTUAL_ENV=$_venv PATH=$_venv/bin:$PATH PIP_USER=0
. "$_setup/ready"

#: [PROBE]
#: Into the row's own venv: what lies below it, and the host's Python, serve others too. Interpreters that the job makes
#: get it by PYTHONPATH.
for _name in ${_venv:+"$_venv"/lib/python*/site-packages}; do
  cp -f -- "$CI_TASKS_RUN_DIR"/bin/probe/ci_tasks_probe* "$_name" 2> /dev/null ||
    echo "ci-tasks: $_name cannot be written, so the probe does not see its processes" >&2
done
export PYTHONPATH="$CI_TASKS_RUN_DIR/bin/probe/start${PYTHONPATH:+:$PYTHONPATH}"

#: [SETUP_TAIL]
# What rows take over: what the steps left in GITHUB_PATH and GITHUB_ENV.
if [ "$_exit_code" = 0 ]; then
  umask 077  # a step may have put a secret there
  cat "$_tmp/later" > "$CI_TASKS_RUN_DIR/ready.new" && mv "$CI_TASKS_RUN_DIR/ready.new" "$CI_TASKS_RUN_DIR/ready" ||
    _exit_code=125
fi
exit "$_exit_code"

#: [OF_THE_CHECKOUT]
#: Asked for and not written down, so that the same install steps of another commit are the same script.
GITHUB_SHA=$(git -C "$GITHUB_WORKSPACE" rev-parse HEAD 2> /dev/null); export GITHUB_SHA

#: [OUTER]
#: A venv over a venv sees the packages of the system's Python only, unless it is told.
  _outer=$("$_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth
  "$_python" -c 'import site
for path in site.getsitepackages(): print(f"import site; site.addsitedir({path!r})")' > "$_outer" ||
    blocked "cannot write $_outer"

#: [VENV]
# actions/setup-python
_venv=@path@ _python=@python@
[ -x "$_venv/bin/python" ] || "$_python" @make@ "$_venv" || blocked "$_python cannot make a venv"
@note@export VIRTUAL_ENV=$_venv PATH=$_venv/bin:$PATH PIP_USER=0

#: [LAYERED_VENV]
# No container here: a throwaway venv over this machine's Python; `pip install` changes nothing outside.
_venv=${_kept:-$CI_TASKS_RUN_DIR}/tmp/venv _python=@python@
if [ ! -x "$_venv/bin/python" ]; then
  "$_python" -m venv --system-site-packages --without-pip "$_venv" || blocked "$_python cannot make a venv"
@outer@  if "$_venv/bin/python" -c 'import pip' 2> /dev/null; then
    for _name in pip pip3; do
      printf '#!/bin/sh\nexec "${0%%/*}/python" -m pip "$@"\n' > "$_venv/bin/$_name"; chmod +x "$_venv/bin/$_name"
    done
  else
    "$_python" -m venv --system-site-packages "$_venv" || blocked "$_python cannot make a venv with pip"
  fi
fi
export VIRTUAL_ENV=$_venv PATH=$_venv/bin:$PATH PIP_USER=0@alone@

#: [CONTAINER]
# The job's container: the rest of this script runs inside it.
if [ -z "${CI_TASKS_INSIDE:-}" ]; then
  export CI_TASKS_INSIDE=1
  exec docker run --rm @arguments@ -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -v "$CI_TASKS_RUN_DIR:$CI_TASKS_RUN_DIR" \
    -w "$GITHUB_WORKSPACE" -e CI_TASKS_INSIDE -e GITHUB_WORKSPACE @passed@ \
    --entrypoint bash @image@ "$CI_TASKS_RUN_DIR/run.sh"
fi

#: [UPLOAD]
#: The step that stands for upload-artifact.
shopt -s globstar nullglob
IFS='' into=$CI_TASKS_RUN_DIR/@place@ root=@root@ files=()
set -- @patterns@
[ -d "$root" ] || { set -- "${root##*/}"; root=${root%/*}; }
cd -- "$root" 2> /dev/null || set --
for pattern; do for file in $pattern; do [ ! -e "$file" ] || files+=("$file"); done; done
[ "${#files[@]}" != 0 ] || { echo "no files were found in $root"; exit @code@; }
mkdir -p -- "$into"
tar -chf - -- "${files[@]}" | tar -xf - -C "$into" || echo "not all of these files could be kept" >&2

#: [FETCH]
#: The step that stands for a checkout of another repository into a directory of its own.
read -r CI_TASKS_PATH <<< "$CI_TASKS_PATH"
CI_TASKS_PATH=$(realpath -m -- "$CI_TASKS_PATH")
case $CI_TASKS_PATH in "$(pwd -P)"/*) ;; *) echo "ci-tasks: blocked: $CI_TASKS_PATH is outside of the checkout" >&2; exit 125 ;; esac
rm -rf -- "$CI_TASKS_PATH" && mkdir -p -- "$CI_TASKS_PATH" && cd -- "$CI_TASKS_PATH" && git init -q &&
  git remote add origin "https://github.com/$CI_TASKS_REPOSITORY" &&
  git fetch -q --depth 1 -- origin "${CI_TASKS_REF:-HEAD}" &&
  git checkout -q --force --detach FETCH_HEAD && git log -1 --format='%H' ||
  { echo "ci-tasks: blocked: cannot fetch $CI_TASKS_REPOSITORY at ${CI_TASKS_REF:-HEAD}" >&2; exit 125; }

#: [ARTIFACT]
# What a job that ran before uploaded, for download-artifact.
mkdir -p -- "$_tmp/artifacts" && base64 -d << 'END_OF_ARTIFACT' > "$_tmp/artifacts/"@artifact@ ||
@text@
END_OF_ARTIFACT
  blocked "cannot write in $_tmp"

#: [STEP]
@decide@if begin @begin@; then
  (
    cd -- @directory@ || exit 1
@exports@@late@    script @words@ << '@mark@'
@text@@mark@
  )
  @end@
fi
