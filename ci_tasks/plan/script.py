"""run.sh as text. It is bash that a person can read and run by hand, and the only thing that the runner executes.

What GitHub's runner does around a step is done here in plain bash: the script file and its interpreter, GITHUB_ENV,
GITHUB_PATH and GITHUB_OUTPUT, `if:` by the job's state, the `##[group]` and `##[error]` lines of CI's log.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ci_tasks.plan.steps import PlannedStep
from ci_tasks.workflow import secrets


@dataclass(frozen=True)
class Venv:
    """A venv for the steps. `layered` puts it over `python`'s own packages and in the run's scratch directory."""

    python: str
    path: str = ""
    layered: bool = False


@dataclass(frozen=True)
class Script:
    """What run.sh is made of. `inside` is the `docker run` argv of a job-level container, its image and options."""

    title: str
    commit: str
    workspace: str
    env: Mapping[str, str]
    steps: Sequence[PlannedStep]
    secrets: Sequence[str] = ()
    venv: Venv | None = None
    setup: str | None = None
    is_setup: bool = False
    container: Sequence[str] = ()
    github: Mapping[str, str] = field(default_factory=dict)


def render(script: Script) -> str:
    """The text of run.sh, or of a setup's."""
    parts = [
        _head(script),
        _FUNCTIONS,
        _exports("What GitHub sets for every job.", script.github),
        _exports("The workflow's and the job's env.", script.env),
        _PYTEST,
        _ADAPTER if script.container else "",
        _container(script) if script.container else "",
        _setup(script.setup) if script.setup else "",
        _venv(script.venv) if script.venv else "",
        _ADAPTER if not script.container else "",
        *(_step(number, step, script.workspace) for number, step in enumerate(script.steps, 1)),
        _SETUP_TAIL if script.is_setup else _TAIL,
    ]
    return "\n".join(part for part in parts if part)


def _head(script: Script) -> str:
    wanted = f"# Secrets come from your environment: {' '.join(script.secrets)}\n" if script.secrets else ""
    title = "".join(char if char.isprintable() else "?" for char in script.title)
    return f"""#!/usr/bin/env bash
# {title}, planned by ci-tasks.
# By hand: bash run.sh   (elsewhere: GITHUB_WORKSPACE=DIR bash run.sh, with a checkout of {script.commit} in DIR)
{wanted}set -uo pipefail
RUN_DIR=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd -P)
export CI_TASKS_RUN_DIR=$RUN_DIR
export GITHUB_WORKSPACE=${{GITHUB_WORKSPACE:-{shlex.quote(script.workspace)}}}
secrets=({" ".join(script.secrets)})
"""


_FUNCTIONS = r"""blocked() { echo "ci-tasks: blocked: $*" >&2; exit 125; }
[ -d "$GITHUB_WORKSPACE" ] || blocked "there is no checkout at $GITHUB_WORKSPACE; set GITHUB_WORKSPACE"
tmp=$RUN_DIR/tmp
mkdir -p -m 700 -- "$tmp" "$RUN_DIR/artifacts" || blocked "cannot write in $RUN_DIR"
job_status=success exit_code=0 number=0

event() { printf '{"t": %s, %s}\n' "$(date +%s.%N)" "$1" >> "$RUN_DIR/events.jsonl"; }

# begin NAME RUNS_AFTER_SUCCESS RUNS_AFTER_FAILURE EVENT: whether the step runs, by its `if:` and the job's state
begin() {
  if [ "$job_status" = success ]; then [ "$2" = 1 ] || return 1; else [ "$3" = 1 ] || return 1; fi
  number=$((number + 1))
  export GITHUB_ENV=$tmp/env GITHUB_PATH=$tmp/path GITHUB_STATE=$tmp/state
  export GITHUB_OUTPUT=$tmp/output GITHUB_STEP_SUMMARY=$RUN_DIR/artifacts/summary.md
  : > "$GITHUB_ENV"; : > "$GITHUB_PATH"; : > "$GITHUB_STATE"; : > "$GITHUB_OUTPUT"
  event "$4"
  echo "##[group]Run $1"
}

# script WORDS…: the step's text, from standard input, run by WORDS, in which {0} is its file
script() {
  local file=$tmp/step-$number text word words=() name
  text=$(cat; printf .); text=${text%.}
  printf '%s' "${text//[$'\002\003']/}"; echo '##[endgroup]'
  # Backslash and ampersand mean something in a replacement of newer bash: the quotes keep them as they are.
  for name in ${secrets[@]+"${secrets[@]}"}; do text=${text//$'\002'"$name"$'\003'/"${!name:-}"}; done
  (umask 077; printf '%s' "$text" > "$file") || blocked "cannot write in $tmp"
  for word; do words+=("${word//'{0}'/$file}"); done
  "${words[@]}" < /dev/null
}

keep() { export "$1=$2"; printf 'export %s=%q\n' "$1" "$2" >> "$tmp/later"; }

# finish EXIT_CODE CONTINUE_ON_ERROR ID: take over what the step left for later ones
finish() {
  local line name value end
  while IFS= read -r line || [ -n "$line" ]; do
    PATH=$line:$PATH; printf 'PATH=%q:$PATH\n' "$line" >> "$tmp/later"
  done < "$GITHUB_PATH"
  while IFS= read -r line || [ -n "$line" ]; do
    name=${line%%[=<]*}
    case $line in
      "$name"'<<'*)
        end=${line#*<<} value=
        while IFS= read -r line && [ "$line" != "$end" ]; do value+=${value:+$'\n'}$line; done
        keep "$name" "$value" ;;
      *=*) keep "$name" "${line#*=}" ;;
    esac
  done < "$GITHUB_ENV"
  if [ -n "$3" ]; then mkdir -p "$RUN_DIR/artifacts/outputs" && cp "$GITHUB_OUTPUT" "$RUN_DIR/artifacts/outputs/$3"; fi
  if [ "$1" != 0 ]; then
    echo "##[error]Process completed with exit code $1."
    if [ "$2" != 1 ] && [ "$job_status" = success ]; then job_status=failure exit_code=$1; fi
  fi
}
"""

_PYTEST = r"""# Evidence of the tests that ran, without touching them; pytest splits this as a shell does.
junit=$RUN_DIR/artifacts/junit.xml
export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }--junitxml='${junit//\'/\'\\\'\'}'"
"""

_TAIL = """exit "$exit_code"
"""

_SETUP_TAIL = r"""# What rows take over: the venv, and what the steps left in GITHUB_PATH and GITHUB_ENV.
if [ "$exit_code" = 0 ]; then
  { printf 'export VIRTUAL_ENV=%q\n' "$venv"; printf 'PATH=%q:$PATH\n' "$venv/bin"; cat "$tmp/later" 2> /dev/null
  } > "$RUN_DIR/ready.new"
  mv "$RUN_DIR/ready.new" "$RUN_DIR/ready" || exit_code=125
fi
exit "$exit_code"
"""

# Last, so that a venv's or a step's PATH cannot come before it.
_ADAPTER = r"""[ -x "$RUN_DIR/bin/docker" ] && PATH=$RUN_DIR/bin:$PATH
"""


def _exports(why: str, env: Mapping[str, str]) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in env.items()]
    return "\n".join([f"# {why}", *lines, ""]) if lines else ""


def _setup(directory: str) -> str:
    home = shlex.quote(directory)
    return f"""# The job's leading steps, the same for every row, are done once.
setup={home}
[ -f "$setup/ready" ] || bash "$setup/run.sh" || blocked "the install steps failed; see $setup/log"
. "$setup/ready"
"""


def _venv(venv: Venv) -> str:
    python = shlex.quote(venv.python)
    if not venv.layered:
        return f"""# actions/setup-python
venv={shlex.quote(venv.path)}
[ -x "$venv/bin/python" ] || {python} -m venv "$venv" || blocked "{_plain(python)} cannot make a venv"
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
"""
    return f"""# No container here: a throwaway venv over this machine's Python, so that `pip install` changes nothing outside.
venv=$tmp/venv
{python} -m venv --system-site-packages --without-pip "$venv" || blocked "{_plain(python)} cannot make a venv"
if "$venv/bin/python" -c 'import pip' 2> /dev/null; then
  for name in pip pip3; do
    printf '#!/bin/sh\\nexec "${{0%%/*}}/python" -m pip "$@"\\n' > "$venv/bin/$name"; chmod +x "$venv/bin/$name"
  done
else
  {python} -m venv --system-site-packages "$venv" || blocked "{_plain(python)} cannot make a venv with pip"
fi
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
"""


def _container(script: Script) -> str:
    """The job-level `container:`: this very script again, inside."""
    names = [*script.github, *script.env]
    passed = " ".join(f"-e {name}" for name in dict.fromkeys((*names, *script.secrets, "PYTEST_ADDOPTS")))
    words = " ".join(quote(word) for word in script.container[:-1])
    image = quote(script.container[-1])
    return f"""# The job's container: the rest of this script runs inside it.
if [ -z "${{CI_TASKS_INSIDE:-}}" ]; then
  export CI_TASKS_INSIDE=1
  exec docker run --rm {words} -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -v "$RUN_DIR:$RUN_DIR" -w "$GITHUB_WORKSPACE" \\
    -e CI_TASKS_INSIDE -e GITHUB_WORKSPACE {passed} \\
    {image} bash "$RUN_DIR/run.sh"
fi
"""


def _step(number: int, step: PlannedStep, workspace: str) -> str:
    mark = f"END_OF_STEP_{number}"
    while mark in step.text:
        mark += "_"
    text = step.text if step.text.endswith("\n") else step.text + "\n"
    words = [shlex.quote(word) for word in step.words]
    if step.timeout_minutes:
        words = ["timeout", "-k", "10", f"{step.timeout_minutes:g}m", *words]
    name = quote(step.name)
    event = shlex.quote(f'"event": "step", "name": {json.dumps(secrets.shown(step.name))}')
    exports = "".join(f"    export {key}={quote(value)}\n" for key, value in step.env.items())
    return f"""if begin {name} {int(step.on_success)} {int(step.on_failure)} {event}; then
  (
    cd -- {_directory(step.directory, workspace)} || exit 1
{exports}    script {" ".join(words)} << '{mark}'
{text}{mark}
  )
  finish $? {int(step.continue_on_error)} {shlex.quote(step.id or "")}
fi
"""


def _directory(directory: str, workspace: str) -> str:
    """Below the workspace wherever that is, so that the script also runs with another one."""
    if directory == workspace:
        return '"$GITHUB_WORKSPACE"'
    if directory.startswith(workspace + "/"):
        return '"$GITHUB_WORKSPACE"/' + quote(directory[len(workspace) + 1 :])
    return quote(directory) if directory.startswith("/") else '"$GITHUB_WORKSPACE"/' + quote(directory)


def quote(text: str) -> str:
    """A bash word for `text`, with each secret taken from the environment when bash comes to it."""
    pieces = []
    for literal, name in secrets.split(text):
        if literal or (name is None and not pieces):
            pieces.append(shlex.quote(literal))
        if name:
            pieces.append(f'"${{{name}:-}}"')
    return "".join(pieces)


def _plain(quoted: str) -> str:
    return quoted.replace('"', "").replace("$", "").replace("`", "")
